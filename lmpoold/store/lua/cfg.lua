--[[ configure, tune: what the pool serves, and the constants that every decision reads.

KEYS[1]  load       HASH    rank rows
configure ARGV  1 n identity pairs, n x (field, value), then (field, value) pairs of settings
tune ARGV       (constant, value) pairs, values already checked for their range

Returns  configure, tune: OK
Errors   CFG_MISMATCH  a live rank serves this pool under another identity; names the field
         NOCFG      no lmpoold has described the pool yet
         BADARGS    (tune) no constant of that name, or not a number

Holds    configure overwrites no setting that is there; tune overwrites nothing else. Both count at once.
]]
local NUMBERS = {'block_size', 'w_wait', 'w_run', 'w_seq', 'w_decode', 'w_prefill', 'w_reclaim',
  'w_flight', 'w_lease', 'w_hop', 'w_urgent', 'bypass_slack', 'spill_gap', 'spill_slack',
  'origin_hops', 'flight_ttl_ms', 'resv_ttl_ms', 'max_parked', 'max_ingress', 'max_client_requests',
  'most_falls', 'late_grace_ms', 'engine_stall_ms', 'req_ttl_s', 'out_ttl_ms', 'out_maxlen',
  'default_deadline_ms', 'fetch', 'fetch_ratio', 'fetch_slack', 'fetch_min_blocks', 'fetch_wait_ms',
  'plan_prepare_ms', 'plan_execute_ms', 'plan_settle_ms', 'plan_fence_ms', 'plan_ttl_s', 'plans_per_rank', 'background',
  'snapshots_at_once'}
local IDENTITY = {protocol = true, model = true, fingerprint = true, dtype = true, block_size = true,
  kv_block_bytes = true, domain = true, max_model_len = true, weights = true}
-- What functions remember between calls, by prefix: hints and copies, which any server may lose.
local cfg_seen, leases_seen, flying = {}, {}, {}
local function forget() cfg_seen[P], leases_seen[P], flying[P] = nil, nil, nil end

-- The numbers of `cfg`, and `pairs`. Read again after a second, for they may be set by hand; a read
-- costs as much as the match.
local CFG_AGE_MS = 1000
local function read_cfg(now)
  local g = cfg_seen[P]
  if g and now >= g.at and now < g.at + CFG_AGE_MS then return g end
  local v = call('HMGET', P .. 'cfg', 'pairs', unpack(NUMBERS))
  g = {at = now, pairs = v[1] or ''}
  for i = 1, #NUMBERS do
    g[NUMBERS[i]] = tonumber(v[i + 1] or '')
    if not g[NUMBERS[i]] then
      return nil, err('NOCFG', 'cfg lacks ' .. NUMBERS[i] .. '; start lmpoold, it writes cfg')
    end
  end
  cfg_seen[P] = g
  return g
end

local function configure(a)
  local n, live = tonumber(a[1]), false
  local flat = call('HGETALL', P .. 'load')
  for i = 1, #flat, 2 do
    local c = parse_row(flat[i + 1])
    live = live or (c.state ~= 'down' and call('GET', rank_key(flat[i], 'alive')) == c.epoch)
  end
  local changed = false
  for i = 2, 2 * n, 2 do
    local have = call('HGET', P .. 'cfg', a[i])
    changed = changed or (have and have ~= a[i + 1])
    if live and have and have ~= a[i + 1] then
      return err('CFG_MISMATCH', a[i] .. ': the pool has ' .. have .. ', this lmpoold has ' .. a[i + 1] ..
        '; stop its workers first or use another pool name')
    end
  end
  if changed then call('HDEL', P .. 'cfg', 'weights') end
  for i = 2, 2 * n, 2 do call('HSET', P .. 'cfg', a[i], a[i + 1]) end
  for i = 2 * n + 2, #a, 2 do call('HSETNX', P .. 'cfg', a[i], a[i + 1]) end
  forget()
  pcall(call, 'XGROUP', 'CREATE', P .. 'in', 'sched', '0', 'MKSTREAM')
  return 'OK'
end

local function tune(a)
  local _, problem = read_cfg(now_ms())
  if problem then return problem end
  -- Most constants are read here, some by lmpoold or the workers only; all of them are in cfg.
  for i = 1, #a, 2 do
    if IDENTITY[a[i]] or call('HEXISTS', P .. 'cfg', a[i]) == 0 then
      return err('BADARGS', a[i] .. ' is no constant of cfg')
    end
    if a[i] ~= 'pairs' and not tonumber(a[i + 1] or '') then
      return err('BADARGS', a[i] .. ' must be a number')
    end
  end
  if #a > 0 then call('HSET', P .. 'cfg', unpack(a)) end
  cfg_seen[P] = nil
  return 'OK'
end

on('configure', configure)
on('tune', tune)
