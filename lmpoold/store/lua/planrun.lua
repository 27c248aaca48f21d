--[[ plan_prepared, plan_executed: both sides are ready, so the blocks travel.

KEYS[1]  load       HASH    rank rows
ARGV of both begins with 1 plan id, 2 rank, 3 epoch
plan_prepared ARGV  4 depth of the first block it speaks of, 5 its blocks from there on,
                    `block:generation` by blank, 6 `1` if the two had to connect for this plan;
                    the source also: 7 depth behind its last, 8 hash domain, 9 token ids by blank
plan_executed ARGV  4 us that sending took: the source's half of the transfer is over

Returns  the plan's phase: `abort` or `aborted` where the report came too late
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the caller lost the rank, or the plan is of another epoch
         MISSING    no such plan

Holds    What travels is what the source has and the destination lacks, as they say themselves.
         Saying the same thing twice changes nothing.
]]
-- Words `skip + 1` to `skip + n` of a text that has `all`.
local function cut(text, skip, n, all)
  if n == all then return text end
  local out, i = {}, 0
  for word in gmatch(text, '%S+') do
    i = i + 1
    if i > skip + n then break end
    if i > skip then out[#out + 1] = word end
  end
  return concat(out, ' ')
end

local function execute(g, p)
  local v = call('HMGET', p.key, 'src_first', 'src_count', 'dst_first', 'src_refs', 'dst_refs', 'tokens', 'root')
  local have, first, count = tonumber(v[1]), tonumber(v[3]), tonumber(v[2])
  if first >= count then return abort_plan(g, p, 'nothing_missing') end
  if first < have then return abort_plan(g, p, 'prefix_reclaimed') end
  local n, size = count - first, g.block_size
  local sent, taken = cut(v[4], first - have, n, count - have), cut(v[5], 0, n)
  call('HSET', p.key, 'first', first, 'count', count, 'src_refs', sent, 'dst_refs', taken, 'tokens', '')
  p.first, p.count = first, count
  step_to(p, 'execute', g.plan_execute_ms)
  call('HSET', p.key, 'at_execute', p.at)
  order(p, 'dst', 'execute', 'first', first, 'count', count, 'refs', sent, 'root', v[7],
    'tokens', cut(v[6], (first - have) * size, n * size, (count - have) * size), 'limit_ms', g.plan_execute_ms)
  order(p, 'src', 'execute', 'first', first, 'count', count, 'refs', taken, 'limit_ms', g.plan_execute_ms)
end

local function plan_prepared(a)
  local g, p, side, problem = begin(a)
  if not g then return problem end
  if p.phase ~= 'prepare' then return p.phase end
  call('HSET', p.key, side .. '_first', a[4], side .. '_refs', a[5])
  if a[6] == '1' then call('HSET', p.key, 'opened', 1) end
  if side == 'src' then call('HSET', p.key, 'src_count', a[7], 'root', a[8], 'tokens', a[9]) end
  say(p, side, 'prepared')
  if p.src_said == 'prepared' and p.dst_said == 'prepared' then execute(g, p) end
  return p.phase
end

local function plan_executed(a)
  local g, p, side, problem = begin(a)
  if not g then return problem end
  if side == 'src' and p.src_said == 'prepared' and (p.phase == 'execute' or p.phase == 'publish') then
    call('HSET', p.key, 'src_us', a[4])
    say(p, 'src', 'sent')
    if p.phase == 'publish' then order(p, 'src', 'finalize', 'limit_ms', g.plan_settle_ms) end
  end
  return p.phase
end

on('plan_prepared', plan_prepared)
on('plan_executed', plan_executed)
