--[[ client: what a client hears, and how many requests it has open.

KEYS[1]  load       HASH    rank rows

Holds    `open:<client>` names a client's requests while `max_client_requests` bounds them. It is a set,
         so nothing counts twice; a name whose request has ended is dropped when the bound meets it.
]]
local OPEN = {queued = true, parked = true, routed = true, running = true}
local SAMPLE = 16

local function leave(g, client, id)
  if g.max_client_requests > 0 then call('SREM', P .. 'open:' .. client, id) end
end

-- Count request `id` as open; false, and not counted, if its client has as many as it may.
local function enter(g, client, id)
  local most, key = g.max_client_requests, P .. 'open:' .. client
  if most == 0 or call('SADD', key, id) == 0 then return true end
  call('PEXPIRE', key, g.default_deadline_ms + g.req_ttl_s * 1000)
  if call('SCARD', key) <= most then return true end
  for _, other in ipairs(call('SRANDMEMBER', key, SAMPLE)) do
    if other ~= id and not OPEN[call('HGET', P .. 'req:' .. other, 'state')] then leave(g, client, other) end
  end
  if call('SCARD', key) <= most then return true end
  leave(g, client, id)
  return false
end

-- One entry on the stream of `client`: flat field, value, ... pairs.
local function answer(g, client, ...)
  local key = P .. 'out:' .. client
  call('XADD', key, 'MAXLEN', '~', g.out_maxlen, '*', ...)
  call('PEXPIRE', key, g.out_ttl_ms)
end

local TYPES = {overloaded = 'overloaded_error', deadline_exceeded = 'timeout_error',
  cancelled = 'cancelled_error', worker_failed = 'server_error'}

-- End a request with an error entry. `emitted` is the next index of its stream.
local function refuse(g, id, client, code, message, state)
  local _, emitted = string.gsub(call('GET', P .. 'emitted:' .. id) or '', ' ', ' ')
  answer(g, client, 'id', id, 'index', emitted, 'error', TYPES[code] or 'invalid_request_error',
    'code', code, 'message', message)
  call('HSET', P .. 'req:' .. id, 'state', state, 'client', client, 'finish', code)
  call('EXPIRE', P .. 'req:' .. id, g.req_ttl_s)
  call('UNLINK', P .. 'emitted:' .. id)
  call('ZREM', P .. 'due', id)
  leave(g, client, id)
end
