--[[ rank_up, rank_down, heartbeat, drain: a worker's claim on a rank.

KEYS[1]  load       HASH    rank rows
rank_up ARGV    1 rank, 2 epoch held before or '', 3 alive ttl ms, 4 total blocks, 5 n identity pairs,
                then n x (cfg field, value), then info pairs for `r:<k>:info`
rank_down ARGV  1 rank, 2 epoch, 3 most requests to move (the caller repeats until 0 remain), 4 `failed`
                or `left`: whether its requests may be to blame
heartbeat ARGV  1 rank, 2 epoch, 3 alive ttl ms, 4 last version that was acknowledged to the worker,
                5 for how many ms the worker has had work and finished no step of it
drain ARGV      1 rank, 2 `drain` or `up`

Returns  rank_up: the new epoch; rank_down: requests still to move; heartbeat: w_decode as it is now, for
         what the worker counts from here on; drain: OK
Errors   NOCFG      no lmpoold has described the pool yet
         CFG_MISMATCH  names the field in which worker and pool differ
         TOO_SMALL  the rank could not hold one request of max_model_len
         RANK_TAKEN another live worker holds the rank
         NORANK     the rank never joined
         STALE_EPOCH  the caller lost the rank, or the server lost its reports, or (heartbeat) it computes
                    no more: join again

Holds    A new epoch empties the rank's pages and reservations at once and moves its requests to `parked`.
         Epochs only grow: max(old, unix ms) + 1, so what was in flight before is older. Two never share one.
         A worker that lives and makes no progress for engine_stall_ms counts as dead.
]]

-- Longer than 64 bytes on purpose: it makes Redis keep the hash as a table, not a list, from the start.
local PAGES_FORMAT = 'block:generation:depth:parent of each published block, keyed by its prefix hash'

local function rank_up(a)
  local rank, total, pairs_n = a[1], tonumber(a[4]), tonumber(a[5])
  local len = tonumber(call('HGET', P .. 'cfg', 'max_model_len') or '')
  if not len then return err('NOCFG', 'no lmpoold has described the pool yet; start lmpoold') end
  for i = 6, 4 + 2 * pairs_n, 2 do
    local have = call('HGET', P .. 'cfg', a[i])
    if have ~= a[i + 1] and not (a[i] == 'weights' and not have) then
      return err('CFG_MISMATCH', a[i] .. ': the pool has ' .. tostring(have) .. ', this worker has ' ..
        a[i + 1] .. '; start it with the pool\'s setting or use another pool name')
    end
  end
  local size = tonumber(call('HGET', P .. 'cfg', 'block_size'))
  if total * size < len then
    return err('TOO_SMALL', total .. ' blocks of ' .. size .. ' tokens cannot hold one request of ' ..
      len .. ' tokens; give the worker more blocks or lower max_model_len')
  end
  local alive = call('GET', rank_key(rank, 'alive'))
  if alive and alive ~= a[2] then
    return err('RANK_TAKEN', 'rank ' .. rank .. ' is held by a live worker (epoch ' .. alive ..
      '); choose another rank or stop that worker')
  end
  local c = parse_row(call('HGET', P .. 'load', rank)) or {epoch = '0'}
  c.epoch = fmt('%.0f', max(tonumber(c.epoch), now_ms()) + 1)
  empty(rank, c)
  c.state, c.free = 'up', total
  call('HSET', rank_key(rank, 'pages'), '_', PAGES_FORMAT)
  while requeue(rank, c.epoch, 1000, true) > 0 do end
  -- With the stream go the groups of earlier epochs: what a zombie waits for there ends with an
  -- error, and it can take no entry away from this epoch.
  call('UNLINK', P .. 'w:' .. rank)
  call('XGROUP', 'CREATE', P .. 'w:' .. rank, c.epoch, '0', 'MKSTREAM')
  for i = 6, 4 + 2 * pairs_n, 2 do
    if a[i] == 'weights' then call('HSET', P .. 'cfg', 'weights', a[i + 1]) end
  end
  call('UNLINK', rank_key(rank, 'info'))
  call('HSET', rank_key(rank, 'info'), 'blocks', a[4], unpack(a, 6 + 2 * pairs_n))
  call('SET', rank_key(rank, 'alive'), c.epoch, 'PX', a[3])
  write_row(rank, c)
  return c.epoch
end

local function rank_down(a)
  local c = parse_row(call('HGET', P .. 'load', a[1]))
  if not c then return err('NORANK', 'rank ' .. a[1] .. ' never joined') end
  if c.epoch ~= a[2] then return err('STALE_EPOCH', 'rank ' .. a[1] .. ' is at epoch ' .. c.epoch) end
  return take_down(a[1], c, tonumber(a[3]), a[4] == 'failed')
end

local function heartbeat(a)
  local c, problem = owned(a[1], a[2])
  if not c then return problem end
  if tonumber(c.ver) < tonumber(a[4]) then
    return err('STALE_EPOCH', 'the server forgot reports up to version ' .. a[4] .. ': join again')
  end
  local g, missing = read_cfg(now_ms())
  if not g then return missing end
  if tonumber(a[5]) >= g.engine_stall_ms then
    call('UNLINK', rank_key(a[1], 'alive'))  -- `route` passes it by from now on, `reap` takes it down
    return err('STALE_EPOCH', 'it finished no step for ' .. a[5] .. ' ms (engine_stall_ms is ' ..
      g.engine_stall_ms .. '): its requests run elsewhere, join again when it moves')
  end
  call('SET', rank_key(a[1], 'alive'), a[2], 'PX', a[3])
  return fmt('%.17g', g.w_decode)
end

local function drain(a)
  local c = parse_row(call('HGET', P .. 'load', a[1]))
  if not c or c.state == 'down' then return err('NORANK', 'rank ' .. a[1] .. ' is not up; see lmpoolctl ranks') end
  c.state = a[2] == 'up' and 'up' or 'drain'
  write_row(a[1], c)
  return 'OK'
end

on('rank_up', rank_up)
on('rank_down', rank_down)
on('heartbeat', heartbeat)
on('drain', drain)
