--[[ delta: a worker reports what its pool came to hold, and what it holds no more.

KEYS[1]  load       HASH    rank rows
delta ARGV
  1 rank, 2 epoch, 3 base version, 4 new version
  5 counts          text    "free reclaim wait_tok run_tok run", blocks, weighted tokens, sequences
  6 n admitted, then n tickets `request.attempt`: queued by the worker, so in its counts from now on
  then n puts, n x (hash, "block:gen:depth:parent"), then hashes to drop

Returns  OK <ver>   applied
         DUP <ver>  this version or a later one is already applied: nothing written
         GAP <ver>  the base is not the version held: reports were lost; a worker that had them
                    acknowledged joins again, anybody else sends a full snapshot by `swap`
Errors   NORANK     the rank never joined
         STALE_EPOCH  the rank was fenced, or the pool does not know of a request admitted: join again
         BADARGS    counts cannot be read

Holds    Readers see a whole version or none of it. Counters are overwritten, not summed: they cannot drift.
         Beside `swap` the only writer of `r:<k>:pages`.
]]
local CHUNK = 4000

local function read_counts(c, text)
  local f, rc, wt, nt, rn = match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not f then return false end
  c.free, c.reclaim = tonumber(f), tonumber(rc)
  c.wait_tok, c.run_tok, c.run = tonumber(wt), tonumber(nt), tonumber(rn)
  return true
end

-- Somebody waits and there is room: wake one lmpoold (it blocks on `wake`).
local function wake(c)
  if c.free + c.reclaim > c.resv and call('ZCARD', P .. 'parked') > 0
    and call('LLEN', P .. 'wake') == 0 then
    call('LPUSH', P .. 'wake', '1')
    call('PEXPIRE', P .. 'wake', 10000)
  end
end

-- Why a report cannot be applied to what the server knows, or nil. A server that was killed may have
-- forgotten what it had acknowledged: then the worker knows of reports or requests that it does not.
local function unfit(c, a)
  if tonumber(a[4]) <= tonumber(c.ver) then return 'DUP ' .. c.ver end
  if c.ver ~= a[3] then return 'GAP ' .. c.ver end
  for i = 7, 6 + tonumber(a[6]) do
    local id, attempt = match(a[i], '^(.+)%.(%d+)$')
    local cur = call('HMGET', P .. 'req:' .. id, 'state', 'attempt')
    local here = cur[1] == 'routed' or cur[1] == 'running'
      or (cur[1] == 'failed' and call('EXISTS', rank_key(a[1], 'over')) == 1)  -- the pool ended it here
    if not here or cur[2] ~= attempt then
      return err('STALE_EPOCH', 'the pool gave ' .. a[i] .. ' to nobody: join again')
    end
  end
end

local function apply(c, a)
  local rank, i, last = a[1], 7, 6 + tonumber(a[6])
  if not read_counts(c, a[5]) then return err('BADARGS', 'cannot read counts ' .. a[5]) end
  while i <= last do
    unreserve(rank, c, a[i])
    local key = P .. 'req:' .. match(a[i], '^(.+)%.%d+$')
    if call('HGET', key, 'state') == 'routed' then call('HSET', key, 'state', 'running') end
    i = i + 1
  end
  local pages, stop = rank_key(rank, 'pages'), last + 1 + 2 * tonumber(a[last + 1])
  i = last + 2
  while i <= stop do
    local j = min(stop, i + CHUNK - 1)
    call('HSET', pages, unpack(a, i, j))
    i = j + 1
  end
  while i <= #a do
    local j = min(#a, i + CHUNK - 1)
    call('HDEL', pages, unpack(a, i, j))
    i = j + 1
  end
  c.ver = a[4]
  write_row(rank, c)
  wake(c)
  return 'OK ' .. c.ver
end

local function delta(a)
  local c, problem = owned(a[1], a[2])
  if not c then return problem end
  return unfit(c, a) or apply(c, a)
end

on('delta', delta)
