--[[ submit, admit, finish: the life of one request outside `route` and the worker.

KEYS[1]  load       HASH    rank rows
submit ARGV  1 id, 2 client, then ingress field, value pairs (id and client among them)
admit ARGV   1 rank, 2 epoch, then (id, attempt) pairs the worker has taken into its queue
finish ARGV  1 id, 2 source (ingress entry id | `parked` | ''), 3 client, 4 code, 5 message, 6 state,
             7 excerpt of the entry for `dead`, or ''

Returns  submit: the entry id | DUP | OVERLOADED | BUSY (its client has as many open as it may);
         admit: ids to drop, for they moved on; finish: OK | DUP
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the rank was fenced: its requests run elsewhere
         BADARGS    no fields to submit

Holds    One end a request: answer, state, acknowledgement and removal are one call.
]]
local function submit(a)
  local g, problem = read_cfg(now_ms())
  if not g then return problem end
  if #a < 4 or #a % 2 ~= 0 then return err('BADARGS', 'submit takes id, client and field value pairs') end
  local key = P .. 'req:' .. a[1]
  local state = call('HGET', key, 'state')
  if state and state ~= 'tombstone' then return 'DUP' end
  if call('XLEN', P .. 'in') >= g.max_ingress then return 'OVERLOADED' end
  if not enter(g, a[2], a[1]) then return 'BUSY' end
  local entry = call('XADD', P .. 'in', '*', unpack(a, 3))
  call('HSET', key, 'state', 'queued', 'client', a[2])
  call('PERSIST', key)
  return entry
end

local function admit(a)
  local _, problem = owned(a[1], a[2])
  if problem then return problem end
  local drop = {}
  for i = 3, #a, 2 do
    local key = P .. 'req:' .. a[i]
    local cur = call('HMGET', key, 'state', 'attempt')
    if (cur[1] ~= 'routed' and cur[1] ~= 'running') or cur[2] ~= a[i + 1] then drop[#drop + 1] = a[i]
    else call('HSET', key, 'state', 'running') end
  end
  return drop
end

local function finish(a)
  local g, problem = read_cfg(now_ms())
  if not g then return problem end
  local id, source, key = a[1], a[2], P .. 'req:' .. a[1]
  if source == 'parked' then
    if not unpark(id) then return 'DUP' end
  elseif source ~= '' then
    if call('XACK', P .. 'in', 'sched', source) == 0 then return 'DUP' end
    call('XDEL', P .. 'in', source)
    local state = call('HGET', key, 'state')
    if state and state ~= 'queued' and state ~= 'tombstone' then return 'DUP' end
  end
  if a[7] ~= '' then
    call('XADD', P .. 'dead', 'MAXLEN', '~', 10000, '*', 'entry', source, 'id', id, 'client', a[3],
      'code', a[4], 'reason', a[5], 'excerpt', a[7])
  end
  refuse(g, id, a[3], a[4], a[5], a[6])
  return 'OK'
end

on('submit', submit)
on('admit', admit)
on('finish', finish)
