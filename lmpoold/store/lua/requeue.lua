--[[ requeue: what becomes of a rank's requests and pages when its worker is gone.

KEYS[1]  load       HASH    rank rows

Holds    A request leaves the dead rank's stream and enters `parked` in one call, one attempt later;
         its emitted tokens stay in `emitted:<id>`, so the next worker goes on where this one was.
         A request whose workers keep dying is refused, not handed round for ever.
]]
-- A request may be what its workers fall over: after most_falls in a row without a token of progress it
-- is not given to another one.
local function move(g, f, cur, fell)
  local key, attempt = P .. 'req:' .. f.id, tonumber(f.attempt) + 1
  if fell and g then
    local emitted = call('STRLEN', P .. 'emitted:' .. f.id)
    local falls = tonumber(cur[6] or '') == emitted and cur[5] + 1 or 1
    if falls >= g.most_falls then
      refuse(g, f.id, cur[4], 'worker_failed', falls .. ' workers in a row were lost while they had this ' ..
        'request; it may be what ends them: see their logs', 'failed')
      return
    end
    call('HSET', key, 'falls', falls, 'fell_at', emitted)
  end
  line_up(f.id, cjson.decode(f.p).priority or 0, tonumber(cur[3]))
  call('HSET', P .. 'parked:req', f.id .. ':p', f.p, f.id .. ':t', f.tokens, f.id .. ':a', attempt)
  call('HSET', key, 'state', 'parked', 'attempt', attempt)
end

-- Move up to `most` requests of a rank whose worker is gone to `parked`; returns how many entries remain.
-- `fell`: the worker did not leave in good order.
local function requeue(rank, epoch, most, fell)
  local stream = P .. 'w:' .. rank
  local entries, g = call('XRANGE', stream, '-', '+', 'COUNT', most), read_cfg(now_ms())
  for _, entry in ipairs(entries) do
    local f = {}
    for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
    if f.kind == 'route' then
      local cur = call('HMGET', P .. 'req:' .. f.id, 'state', 'attempt', 'deadline', 'client', 'falls',
        'fell_at')
      if (cur[1] == 'routed' or cur[1] == 'running') and cur[2] == f.attempt then move(g, f, cur, fell) end
    end
    pcall(call, 'XACK', stream, epoch, entry[1])
    call('XDEL', stream, entry[1])
  end
  if #entries > 0 and call('LLEN', P .. 'wake') == 0 then
    call('LPUSH', P .. 'wake', '1')
    call('PEXPIRE', P .. 'wake', 10000)
  end
  return call('XLEN', stream)
end

-- Forget what a dead epoch published and reserved.
local function empty(rank, c)
  call('UNLINK', rank_key(rank, 'pages'), rank_key(rank, 'resv'), rank_key(rank, 'over'))
  c.free, c.reclaim, c.resv, c.resv_tok, c.wait_tok, c.run_tok, c.run, c.ver = 0, 0, 0, 0, 0, 0, 0, '0'
end

local function take_down(rank, c, most, fell)
  if c.state ~= 'down' then
    c.state = 'down'
    empty(rank, c)
    call('UNLINK', rank_key(rank, 'alive'))
    write_row(rank, c)
  end
  return requeue(rank, c.epoch, most, fell)
end
