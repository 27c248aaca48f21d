--[[ plan_prepare: a plan begins; what every other function of a plan shares.

KEYS[1]  load       HASH    rank rows
plan_prepare ARGV   1 `lead` or the source rank, 2 fencing token, or that rank's epoch, 3 plan id,
                    4 mode, 5 why, 6 source, 7 destination, 8 hashes (32 digits a block, root first),
                    9 depth of the first block that travels, 10 predicted cost in us,
                    11 (move) depth up to which the source keeps its blocks

Returns  the plan's phase, or `refused busy`, `refused down`
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the caller lost the rank
         FENCED     another lmpoold leads by now
         BADARGS    hashes cannot be read

Holds    A plan names both epochs: under any other nothing of it counts.
         Whoever says the last missing word of a phase opens the next one, in the same call.
]]
local PLAN = {'phase', 'mode', 'why', 'src', 'dst', 'src_epoch', 'dst_epoch', 'first', 'count',
  'src_said', 'dst_said', 'began', 'cost_us', 'at'}

local function now_us()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function read_plan(id)
  local key = P .. 'plan:' .. id
  local v = call('HMGET', key, unpack(PLAN))
  if not v[1] then return nil end
  local p = {id = id, key = key}
  for i = 1, #PLAN do p[PLAN[i]] = v[i] or '' end
  return p
end

-- Whether the epoch that takes part is still the rank's.
local function takes_part(p, side)
  local c = parse_row(call('HGET', P .. 'load', p[side]))
  return c and c.state ~= 'down' and c.epoch == p[side .. '_epoch']
end

-- Tell one side what to do, unless its epoch is over: then nobody is there to do it.
local function order(p, side, kind, ...)
  if not takes_part(p, side) then return end
  local other = side == 'src' and 'dst' or 'src'
  call('XADD', P .. 'w:' .. p[side], '*', 'kind', 'plan_' .. kind, 'id', p.id,
    'role', side == 'src' and 'source' or 'destination', 'epoch', p[side .. '_epoch'],
    'peer', p[other], 'peer_epoch', p[other .. '_epoch'], ...)
end

local function step_to(p, phase, limit_ms)
  local now = now_us()
  p.phase, p.at = phase, fmt('%.0f', now)
  call('HSET', p.key, 'phase', phase, 'at', p.at)
  call('ZADD', P .. 'plans', fmt('%.0f', floor(now / 1000) + limit_ms), p.id)
end

-- Which side of the plan the caller is: `src`, `dst`, or nil and the error to return.
local function side_of(p, rank, epoch)
  local _, problem = owned(rank, epoch)
  if problem then return nil, problem end
  local side = rank == p.src and 'src' or 'dst'
  if p[side] ~= rank or p[side .. '_epoch'] ~= epoch then
    return nil, err('STALE_EPOCH', 'plan ' .. p.id .. ' is not of rank ' .. rank .. ' at epoch ' .. epoch)
  end
  return side
end

local function open_plan(g, p)
  p.key, p.began, p.count = P .. 'plan:' .. p.id, fmt('%.0f', now_us()), p.count or #p.hashes / DIGITS
  call('HSET', p.key, 'mode', p.mode, 'why', p.why, 'src', p.src, 'dst', p.dst,
    'src_epoch', p.src_epoch, 'dst_epoch', p.dst_epoch, 'first', p.first,
    'count', p.count, 'hashes', p.hashes, 'began', p.began, 'cost_us', p.cost_us)
  step_to(p, 'prepare', g.plan_prepare_ms)
  for _, side in ipairs{'src', 'dst'} do
    call('SADD', rank_key(p[side], 'plans'), p.id)
    order(p, side, 'prepare', 'mode', p.mode, 'why', p.why, 'hashes', p.hashes, 'first', p.first,
      'count', p.count, 'keep', p.keep or 0, 'limit_ms', g.plan_prepare_ms)
  end
end

local function busy(g, rank) return call('SCARD', rank_key(rank, 'plans')) >= g.plans_per_rank end

local function plan_prepare(a)
  local g, problem = read_cfg(now_ms())
  if not g then return problem end
  if a[1] == 'lead' then problem = fenced(a[2]) else problem = select(2, owned(a[1], a[2])) end
  if problem then return problem end
  if #a[8] == 0 or #a[8] % DIGITS ~= 0 then return err('BADARGS', 'cannot read the hashes of ' .. a[3]) end
  local phase = call('HGET', P .. 'plan:' .. a[3], 'phase')
  if phase then return phase end
  local s, d = parse_row(call('HGET', P .. 'load', a[6])), parse_row(call('HGET', P .. 'load', a[7]))
  if not s or s.state == 'down' or not d or d.state ~= 'up' or a[6] == a[7] then return 'refused down' end
  if busy(g, a[6]) or busy(g, a[7]) then return 'refused busy' end
  open_plan(g, {id = a[3], mode = a[4], why = a[5], src = a[6], dst = a[7], src_epoch = s.epoch,
    dst_epoch = d.epoch, hashes = a[8], first = a[9], cost_us = a[10], keep = a[11]})
  return 'prepare'
end

on('plan_prepare', plan_prepare)
