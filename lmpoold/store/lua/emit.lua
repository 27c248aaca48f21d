--[[ emit, step: what a worker's askers read, and the end of their requests.

KEYS[1]  load       HASH    rank rows
emit ARGV    1 rank, 2 epoch, 3 step number (a step up to the last one written is not written again),
             then n entries, n x (client, m, m fields and values): what the askers read
             then n tokens, n x (id, ids by blank): journal of what was emitted, for a re-route
             then n ends, n x (id, attempt, worker entry, state, finish reason, prompt, cached, output tokens)
step ARGV    1 number of arguments for emit, then those, then the arguments of delta

Returns  emit: OK | DUP; step: as delta, and with GAP nothing was written
Errors   NOCFG      no lmpoold has described the pool yet
         NORANK     the rank never joined
         STALE_EPOCH  the rank was fenced: its requests run elsewhere, nothing was written
         OVER       requests named that the pool has ended: nothing was written, send it without them
         BADARGS    (step) delta cannot read the counts

Holds    One end a request: answer, state, acknowledgement and removal are one call.
         A fenced worker writes nothing, so no token is repeated after a re-route.
]]
local function emit(a)
  local c, problem = owned(a[1], a[2])
  if not c then return problem end
  local g, missing = read_cfg(now_ms())
  if not g then return missing end
  local seq = P .. 'r:' .. a[1] .. ':emitted'
  local was = call('MGET', seq, rank_key(a[1], 'over'))
  local epoch, written = match(was[1] or '', '^(%d+):(%d+)$')
  if epoch == a[2] and tonumber(a[3]) <= tonumber(written) then return 'DUP' end
  local over = was[2] and over_in(g, a) or {}
  if #over > 0 then return err('OVER', concat(over, ' ')) end
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
  local stream, stats, freed, gone = P .. 'w:' .. a[1], rank_key(a[1], 'stats'), false, {}
  for _ = 1, tonumber(a[i]) do
    local id, key = a[i + 1], P .. 'req:' .. a[i + 1]
    freed = unreserve(a[1], c, id .. '.' .. a[i + 2]) or freed
    call('HSET', key, 'state', a[i + 4], 'finish', a[i + 5], 'prompt_tokens', a[i + 6],
      'cached_tokens', a[i + 7], 'emitted', a[i + 8])
    call('EXPIRE', key, g.req_ttl_s)
    call('UNLINK', P .. 'emitted:' .. id)
    gone[#gone + 1] = id
    if g.max_client_requests > 0 then leave(g, call('HGET', key, 'client') or '', id) end
    call('XACK', stream, a[2], a[i + 3])
    call('XDEL', stream, a[i + 3])
    call('HINCRBY', stats, 'requests', 1)
    call('HINCRBY', stats, 'prompt_tokens', a[i + 6])
    call('HINCRBY', stats, 'cached_tokens', a[i + 7])
    call('HINCRBY', stats, 'output_tokens', a[i + 8])
    i = i + 8
  end
  if #gone > 0 then call('ZREM', P .. 'due', unpack(gone)) end
  if freed then write_row(a[1], c) end
  return 'OK'
end

-- emit and delta in one call: what a worker sends after each step of its engine.
local function step(a)
  local n, said, changed = tonumber(a[1]), {}, {}
  for i = 2, n + 1 do said[i - 1] = a[i] end
  for i = n + 2, #a do changed[i - n - 1] = a[i] end
  local c, problem = owned(changed[1], changed[2])
  if not c then return problem end
  local why = unfit(c, changed)
  if why and (type(why) == 'table' or sub(why, 1, 3) == 'GAP') then return why end
  local reply = emit(said)
  if type(reply) == 'table' then return reply end
  return why or apply(parse_row(call('HGET', P .. 'load', changed[1])), changed)
end

on('emit', emit)
on('step', step)
