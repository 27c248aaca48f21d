--[[ plan_publish, plan_finalize: the destination's pages become visible, and both sides clear up.

KEYS[1]  load       HASH    rank rows
ARGV of both begins with 1 plan id, 2 rank, 3 epoch
plan_publish ARGV   4 us that receiving took: the destination has every block, byte for byte
plan_finalize ARGV  4 blocks that the source gave up

Returns  the plan's phase: `abort` or `aborted` where the report came too late
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the caller lost the rank, or the plan is of another epoch
         MISSING    no such plan

Holds    Pages become visible in one call, which has seen both epochs alive.
         Saying the same thing twice changes nothing.
]]
-- Put the pages into the destination's table, unless a delta that is on its way has the parent. Scratch
-- has none.
local function show(p)
  if p.why == 'calibrate' then return end
  local v = call('HMGET', p.key, 'hashes', 'dst_refs', 'root')
  local key, depth_at, parent = rank_key(p.dst, 'pages'), tonumber(p.first), v[3]
  if depth_at > 0 then
    parent = sub(v[1], (depth_at - 1) * DIGITS + 1, depth_at * DIGITS)
    if call('HEXISTS', key, parent) == 0 then return end
  end
  for ref in gmatch(v[2], '%S+') do
    local name = sub(v[1], depth_at * DIGITS + 1, (depth_at + 1) * DIGITS)
    call('HSETNX', key, name, ref .. ':' .. depth_at .. ':' .. parent)
    depth_at, parent = depth_at + 1, name
  end
end

local function plan_publish(a)
  local g, p, side, problem = begin(a)
  if not g then return problem end
  if side ~= 'dst' or p.phase ~= 'execute' then return p.phase end
  if not takes_part(p, 'src') or call('GET', rank_key(p.src, 'alive')) ~= p.src_epoch then
    abort_plan(g, p, 'source_lost')
    return p.phase
  end
  show(p)
  step_to(p, 'publish', g.plan_settle_ms)
  call('HSET', p.key, 'at_publish', p.at, 'dst_us', a[4])
  say(p, 'dst', 'landed')
  if p.src_said == 'sent' then order(p, 'src', 'finalize', 'limit_ms', g.plan_settle_ms) end
  return p.phase
end

local function plan_finalize(a)
  local g, p, side, problem = begin(a)
  if not g then return problem end
  if p.phase ~= 'publish' then return p.phase end
  if side == 'src' then call('HSET', p.key, 'freed', a[4]) end
  say(p, side, 'cleared')
  if both(p, 'cleared') then settle(g, p, 'finalize') end
  return p.phase
end

on('plan_publish', plan_publish)
on('plan_finalize', plan_finalize)
