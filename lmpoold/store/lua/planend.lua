--[[ plan_abort: how a plan ends, whoever dies meanwhile.

KEYS[1]  load       HASH    rank rows
plan_abort ARGV  1 plan id, 2 rank, 3 epoch, 4 reason, 5 `1` if this side has stopped for good

Returns  the plan's phase
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the caller lost the rank, or the plan is of another epoch
         MISSING    no such plan

Holds    Nothing is freed at either side before both have stopped or their epoch is over.
         Visible blocks only go forward: a plan is aborted before `publish` or not at all.
]]
local function both(p, word)
  for _, side in ipairs{'src', 'dst'} do
    if p[side .. '_said'] ~= word and takes_part(p, side) then return false end
  end
  return true
end

local function say(p, side, word)
  p[side .. '_said'] = word
  call('HSET', p.key, side .. '_said', word)
end

-- The end: nobody holds anything for the plan; its record stays for a while, its figures in the log.
local function settle(g, p, phase)
  step_to(p, phase, 0)
  call('ZREM', P .. 'plans', p.id)
  call('SREM', rank_key(p.src, 'plans'), p.id)
  call('SREM', rank_key(p.dst, 'plans'), p.id)
  local v = call('HMGET', p.key, 'hashes', 'reason', 'at_publish', 'src_us', 'dst_us', 'freed', 'at_execute',
    'opened')
  local leaf = sub(v[1] or '', -DIGITS)
  if call('HGET', rank_key(p.dst, 'incoming'), leaf) == p.id then
    call('HDEL', rank_key(p.dst, 'incoming'), leaf)
  end
  call('HDEL', p.key, 'hashes', 'tokens', 'src_refs', 'dst_refs')
  call('EXPIRE', p.key, g.plan_ttl_s)
  local took = v[3] and fmt('%.0f', v[3] - p.began) or '0'
  local ready = v[7] and fmt('%.0f', v[7] - p.began) or '0'
  local log = P .. (p.why == 'calibrate' and 'plans:probed' or 'plans:log')
  call('XADD', log, 'MAXLEN', '~', 1000, '*', 'id', p.id, 'outcome', phase, 'mode', p.mode,
    'why', p.why, 'src', p.src, 'dst', p.dst, 'blocks', max(0, p.count - p.first), 'prepare_us', ready,
    'publish_us', took, 'settle_us', fmt('%.0f', p.at - p.began),
    'src_us', v[4] or '0', 'dst_us', v[5] or '0', 'cost_us', p.cost_us, 'freed', v[6] or '0',
    'opened', v[8] or '0',
    'reason', v[2] or '-')
  if p.why == 'calibrate' then call('EXPIRE', log, g.plan_ttl_s) end
end

local function aborted(g, p)
  if not both(p, 'stopped') then return end
  settle(g, p, 'aborted')
  order(p, 'src', 'settle')
  order(p, 'dst', 'settle')
end

local function stop_both(g, p)
  for _, side in ipairs{'src', 'dst'} do
    if p[side .. '_said'] ~= 'stopped' then order(p, side, 'abort', 'limit_ms', g.plan_settle_ms) end
  end
end

local function abort_plan(g, p, reason)
  step_to(p, 'abort', g.plan_settle_ms)
  call('HSET', p.key, 'reason', reason, 'at_abort', p.at)
  stop_both(g, p)
  aborted(g, p)
end

-- What each report of a side begins with: settings, plan, side; or the error to return as a fourth.
local function begin(a)
  local g, problem = read_cfg(now_ms())
  if not g then return nil, nil, nil, problem end
  local p = read_plan(a[1])
  if not p then
    return nil, nil, nil, err('MISSING', 'no plan ' .. a[1] .. '; it was settled and its record is gone')
  end
  local side, stale = side_of(p, a[2], a[3])
  if not side then return nil, nil, nil, stale end
  return g, p, side
end

local function plan_abort(a)
  local g, p, side, problem = begin(a)
  if not g then return problem end
  local open = p.phase == 'prepare' or p.phase == 'execute'
  if (open or p.phase == 'abort') and a[5] == '1' then say(p, side, 'stopped') end
  if open then abort_plan(g, p, a[4])
  elseif p.phase == 'abort' then aborted(g, p)
  elseif p.phase == 'publish' and side == 'src' and p.src_said == 'prepared' then
    -- The destination has all of it, whatever went wrong on this side.
    say(p, 'src', 'sent')
    order(p, 'src', 'finalize', 'limit_ms', g.plan_settle_ms)
  end
  return p.phase
end

on('plan_abort', plan_abort)
