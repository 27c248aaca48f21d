--[[ cancel, reap, acquire: what ends by decision or by time.

KEYS[1]  load       HASH    rank rows
cancel ARGV  1 id
reap ARGV    1 most requests to move or end in this call, 2 idle ms of a consumer that counts as dead
acquire ARGV 1 owner, 2 ttl ms

Returns  cancel: the state the request was in, or UNKNOWN (a mark waits for it default_deadline_ms)
         reap: texts `down <rank>`, `moved <rank> <left>`, `expired <ticket>`, `late <id>`, `lease <hash>`,
         `gone <consumer>`
         acquire: the fencing token
Errors   NOCFG      no lmpoold has described the pool yet
         HELD       another lmpoold leads

Holds    Every reservation, request, placement lease and claim on a rank ends here, and only here, when
         its time is over.
]]
local function cancel(a)
  local g, problem = read_cfg(now_ms())
  if not g then return problem end
  local id, key = a[1], P .. 'req:' .. a[1]
  local cur = call('HMGET', key, 'state', 'client', 'rank')
  local state = cur[1]
  if not state then
    call('HSET', key, 'state', 'tombstone', 'cancel', '1')
    call('PEXPIRE', key, g.default_deadline_ms)
    return 'UNKNOWN'
  end
  if state == 'parked' then
    unpark(id)
    refuse(g, id, cur[2], 'cancelled', 'cancelled while it waited for room', 'cancelled')
  elseif state == 'queued' or state == 'routed' or state == 'running' then
    call('HSET', key, 'cancel', '1')
    if state ~= 'queued' then call('XADD', P .. 'w:' .. cur[3], '*', 'kind', 'cancel', 'id', id) end
  end
  return state
end

local function expire_reservations(rank, c, now, out)
  local flat, changed = call('HGETALL', rank_key(rank, 'resv')), false
  for i = 1, #flat, 2 do
    if tonumber(match(flat[i + 1], '^%d+:%d+:(%d+)')) < now then
      changed = unreserve(rank, c, flat[i]) or changed
      out[#out + 1] = 'expired ' .. flat[i]
    end
  end
  if #flat == 0 and (c.resv ~= 0 or c.resv_tok ~= 0) then c.resv, c.resv_tok, changed = 0, 0, true end
  if changed then write_row(rank, c) end
end

-- Consumers of lmpoolds that died. One that lives after all is made anew by its next read; one that
-- still has entries keeps them until somebody has claimed them.
local function forget_consumers(idle_ms, out)
  for _, flat in ipairs(call('XINFO', 'CONSUMERS', P .. 'in', 'sched')) do
    local f = {}
    for i = 1, #flat, 2 do f[flat[i]] = flat[i + 1] end
    if tonumber(f.pending) == 0 and tonumber(f.idle) > idle_ms then
      call('XGROUP', 'DELCONSUMER', P .. 'in', 'sched', f.name)
      out[#out + 1] = 'gone ' .. f.name
    end
  end
end

local function reap(a)
  local now, most, out = now_ms(), tonumber(a[1]), {}
  local g, problem = read_cfg(now)
  if not g then return problem end
  local flat = call('HGETALL', P .. 'load')
  for i = 1, #flat, 2 do
    local rank, c = flat[i], parse_row(flat[i + 1])
    if c.state == 'down' then
      if call('XLEN', P .. 'w:' .. rank) > 0 then
        out[#out + 1] = 'moved ' .. rank .. ' ' .. requeue(rank, c.epoch, most, true)
      end
    elseif call('GET', rank_key(rank, 'alive')) ~= c.epoch then
      out[#out + 1] = 'down ' .. rank
      take_down(rank, c, most, true)
    else
      expire_reservations(rank, c, now, out)
    end
  end
  end_late(g, now, most, out)
  for _, name in ipairs(end_leases(now)) do out[#out + 1] = 'lease ' .. name end
  forget_consumers(tonumber(a[2]), out)
  return out
end

local function acquire(a)
  local lead, fence = P .. 'sched:lead', P .. 'sched:fence'
  local cur = call('GET', lead)
  if cur and cur ~= a[1] then return err('HELD', cur) end
  if cur then
    call('PEXPIRE', lead, a[2])
    return call('GET', fence)
  end
  local token = fmt('%.0f', max(tonumber(call('GET', fence) or '0') + 1, now_ms()))
  call('SET', lead, a[1], 'PX', a[2])
  call('SET', fence, token)
  return token
end

on('cancel', cancel)
on('reap', reap)
on('acquire', acquire)
