--[[ requeue: what becomes of a rank's requests and pages when its worker is gone.

KEYS[1]  load       HASH    rank rows

Holds    A request leaves the dead rank's stream and enters `parked` in one call, one attempt later;
         its emitted tokens stay in `emitted:<id>`, so the next worker goes on where this one was.
]]
-- Move up to `most` requests of a rank whose worker is gone to `parked`; returns how many entries remain.
local function requeue(rank, epoch, most)
  local stream = P .. 'w:' .. rank
  local entries = call('XRANGE', stream, '-', '+', 'COUNT', most)
  for _, entry in ipairs(entries) do
    local f = {}
    for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
    if f.kind == 'route' then
      local key = P .. 'req:' .. f.id
      local cur = call('HMGET', key, 'state', 'attempt', 'deadline')
      if (cur[1] == 'routed' or cur[1] == 'running') and cur[2] == f.attempt then
        call('ZADD', P .. 'parked', cur[3], f.id)
        call('HSET', P .. 'parked:req', f.id .. ':p', f.p, f.id .. ':t', f.tokens,
          f.id .. ':a', tonumber(f.attempt) + 1)
        call('HSET', key, 'state', 'parked', 'attempt', tonumber(f.attempt) + 1)
      end
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
  call('UNLINK', rank_key(rank, 'pages'), rank_key(rank, 'resv'))
  c.free, c.reclaim, c.resv, c.resv_tok, c.wait_tok, c.run_tok, c.run, c.ver = 0, 0, 0, 0, 0, 0, 0, '0'
end

local function take_down(rank, c, most)
  if c.state ~= 'down' then
    c.state = 'down'
    empty(rank, c)
    call('UNLINK', rank_key(rank, 'alive'))
    write_row(rank, c)
  end
  return requeue(rank, c.epoch, most)
end
