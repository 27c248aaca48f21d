--[[ submit, admit, emit, finish: the life of one request outside `route`.

KEYS[1]  load       HASH    rank rows
submit ARGV  1 id, 2 client, then ingress field, value pairs (id and client among them)
admit ARGV   1 rank, 2 epoch, then (id, attempt) pairs the worker has taken into its queue
emit ARGV    1 rank, 2 epoch, 3 step number (a step that was written already is not written again),
             then n entries, n x (client, m, m fields and values): what the askers read
             then n tokens, n x (id, ids by blank): journal of what was emitted, for a re-route
             then n ends, n x (id, attempt, worker entry, state, finish reason, prompt, cached, output tokens)
finish ARGV  1 id, 2 source (ingress entry id | `parked` | ''), 3 client, 4 code, 5 message, 6 state,
             7 excerpt of the entry for `dead`, or ''

Returns  submit: the entry id | DUP | OVERLOADED; admit: ids to drop, for they moved on
         emit: OK | DUP; finish: OK | DUP
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the rank was fenced: its requests run elsewhere, nothing was written
         BADARGS    no fields to submit

Holds    One end a request: answer, state, acknowledgement and removal are one call.
         A fenced worker writes nothing, so no token is repeated after a re-route.
]]
local function submit(a)
  local g, problem = read_cfg((now_ms()))
  if not g then return problem end
  if #a < 4 or #a % 2 ~= 0 then return err('BADARGS', 'submit takes id, client and field value pairs') end
  local key = P .. 'req:' .. a[1]
  local state = call('HGET', key, 'state')
  if state and state ~= 'tombstone' then return 'DUP' end
  if call('XLEN', P .. 'in') >= g.max_ingress then return 'OVERLOADED' end
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

local function emit(a)
  local c, problem = owned(a[1], a[2])
  if not c then return problem end
  local g, missing = read_cfg((now_ms()))
  if not g then return missing end
  local seq = P .. 'r:' .. a[1] .. ':emitted'
  if call('GET', seq) == a[2] .. ':' .. a[3] then return 'DUP' end
  call('SET', seq, a[2] .. ':' .. a[3], 'PX', g.out_ttl_ms)
  local i = 5
  for _ = 1, tonumber(a[4]) do
    local last = i + 1 + tonumber(a[i + 1])
    answer(g, a[i], unpack(a, i + 2, last))
    i = last + 1
  end
  for _ = 1, tonumber(a[i]) do
    local key = P .. 'emitted:' .. a[i + 1]
    if call('APPEND', key, a[i + 2] .. ' ') == #a[i + 2] + 1 then
      call('EXPIRE', key, ceil(g.default_deadline_ms / 1000) + g.req_ttl_s)
    end
    i = i + 2
  end
  i = i + 1
  local stream, stats, freed = P .. 'w:' .. a[1], rank_key(a[1], 'stats'), false
  for _ = 1, tonumber(a[i]) do
    local id, key = a[i + 1], P .. 'req:' .. a[i + 1]
    freed = unreserve(a[1], c, id .. '.' .. a[i + 2]) or freed
    call('HSET', key, 'state', a[i + 4], 'finish', a[i + 5], 'prompt_tokens', a[i + 6],
      'cached_tokens', a[i + 7], 'emitted', a[i + 8])
    call('EXPIRE', key, g.req_ttl_s)
    call('UNLINK', P .. 'emitted:' .. id)
    call('XACK', stream, 'w', a[i + 3])
    call('XDEL', stream, a[i + 3])
    call('HINCRBY', stats, 'requests', 1)
    call('HINCRBY', stats, 'prompt_tokens', a[i + 6])
    call('HINCRBY', stats, 'cached_tokens', a[i + 7])
    call('HINCRBY', stats, 'output_tokens', a[i + 8])
    i = i + 8
  end
  if freed then write_row(a[1], c) end
  return 'OK'
end

local function finish(a)
  local g, problem = read_cfg((now_ms()))
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
on('emit', emit)
on('finish', finish)
