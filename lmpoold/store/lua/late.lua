--[[ late: requests past their deadline, wherever they are.

KEYS[1]  load       HASH    rank rows

Holds    `due` names every request that waits for a rank or is at one, by when the pool ends it: at its
         deadline while it is parked, late_grace_ms later while a worker has it, for one that is well
         ends it itself.
         After an end of the pool's nothing follows on a request's stream: `r:<k>:over` says that rank k
         may still speak of such requests, and `emit` turns a step away that does (OVER).
]]
local function set_over(g, rank)
  call('SET', rank_key(rank, 'over'), '1', 'PX', max(g.out_ttl_ms, 2 * g.engine_stall_ms))
end

-- Take a request away from a worker that did not end it in time; whatever it says of it later is void.
local function withdraw(g, id, rank, attempt, entry)
  local stream, c = P .. 'w:' .. rank, parse_row(call('HGET', P .. 'load', rank))
  pcall(call, 'XACK', stream, c.epoch, entry)
  call('XDEL', stream, entry)
  if c.state == 'down' then return end
  if unreserve(rank, c, id .. '.' .. attempt) then write_row(rank, c) end
  set_over(g, rank)
  call('XADD', stream, '*', 'kind', 'cancel', 'id', id)
end

-- End up to `most` requests whose time is over.
local function end_late(g, now, most, out)
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'due', '-inf', fmt('%.0f', now), 'LIMIT', 0, most)) do
    local cur = call('HMGET', P .. 'req:' .. id, 'state', 'client', 'rank', 'attempt', 'entry')
    local parked = unpark(id)
    if parked or cur[1] == 'routed' or cur[1] == 'running' then
      if not parked then withdraw(g, id, cur[3], cur[4], cur[5]) end
      refuse(g, id, cur[2] or id, 'deadline_exceeded', 'its deadline passed while it ' ..
        (parked and 'waited for room' or 'was at rank ' .. cur[3] .. ', which did not end it'), 'failed')
      out[#out + 1] = 'late ' .. id
    else
      call('ZREM', P .. 'due', id)
    end
  end
end

-- Of the requests that a step of `emit` speaks of, those that have ended without its rank.
local function over_in(g, a)
  local i, ids = 5, {}
  for _ = 1, tonumber(a[4]) do i = i + 2 + tonumber(a[i + 1]) end
  for j = i + 1, i + 2 * tonumber(a[i]), 2 do ids[#ids + 1] = a[j] end
  i = i + 1 + 2 * tonumber(a[i])
  for j = i + 1, i + 8 * tonumber(a[i]), 8 do ids[#ids + 1] = a[j] end
  local found, known = {}, {}
  for _, id in ipairs(ids) do
    local state = not known[id] and call('HGET', P .. 'req:' .. id, 'state')
    known[id] = true
    if state and state ~= 'routed' and state ~= 'running' then found[#found + 1] = id end
  end
  if #found > 0 then set_over(g, a[1]) end
  return found
end
