--[[ stage, swap: a worker sends all that its pool holds, beside the page table, and puts it in its place.

KEYS[1]  load       HASH    rank rows
stage ARGV 1 rank, 2 epoch
swap ARGV  1 rank, 2 epoch, 3 new version, 4 counts as of `delta`, 5 pages staged
  The pages lie in `r:<k>:stage:<epoch>:<version>`, written by plain HSETs beside the field `_`.

Returns  stage: GO | WAIT (as many as may send snapshots do so: ask again in a moment); GO holds for
         TURN_MS, and longer if the rank asks again before
         swap:  OK <ver>   applied
                DUP <ver>  this version or a later one is already applied; either way the turn ends
Errors   NORANK     the rank never joined
         STALE_EPOCH  the rank was fenced
         NOCFG      (stage) no lmpoold has described the pool yet
         BADARGS    (swap) counts cannot be read
         STAGE_SIZE (swap) the staged hash does not hold the pages announced; stage again

Holds    Readers see a whole version or none of it.
         At most `snapshots_at_once` ranks are at it at a time: what the chunks of all of them take is what
         another client waits. One that dies at it gives way after TURN_MS.
]]
local TURN_MS = 2000

local function stage(a)
  local _, problem = owned(a[1], a[2])
  if problem then return problem end
  local now = now_ms()
  local g, missing = read_cfg(now)
  if not g then return missing end
  local turns = P .. 'staging'
  call('ZREMRANGEBYSCORE', turns, '-inf', fmt('%.0f', now))
  if not call('ZSCORE', turns, a[1]) and call('ZCARD', turns) >= g.snapshots_at_once then return 'WAIT' end
  call('ZADD', turns, fmt('%.0f', now + TURN_MS), a[1])
  call('PEXPIRE', turns, TURN_MS)
  return 'GO'
end

local function swap(a)
  local rank, version = a[1], a[3]
  local c, problem = owned(rank, a[2])
  if not c then return problem end
  if tonumber(version) <= tonumber(c.ver) then
    call('ZREM', P .. 'staging', rank)
    return 'DUP ' .. c.ver
  end
  if not read_counts(c, a[4]) then return err('BADARGS', 'cannot read counts ' .. a[4]) end
  local staged_at, pages = rank_key(rank, 'stage:' .. a[2] .. ':' .. version), rank_key(rank, 'pages')
  local staged = call('HLEN', staged_at)
  if staged ~= tonumber(a[5]) + 1 then
    return err('STAGE_SIZE', 'staged ' .. staged .. ' fields, announced ' .. a[5] .. ' pages')
  end
  call('UNLINK', pages)
  call('RENAME', staged_at, pages)
  call('PERSIST', pages)
  call('ZREM', P .. 'staging', rank)
  c.ver = version
  write_row(rank, c)
  wake(c)
  return 'OK ' .. c.ver
end

on('stage', stage)
on('swap', swap)
