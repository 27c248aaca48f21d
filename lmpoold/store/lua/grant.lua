--[[ lease_grant, lease_expire: the leader gives and ends placement leases; lease.lua says what they do.

KEYS[1]  load       HASH    rank rows
lease_grant ARGV   1 fencing token, 2 prefix hash, 3 its depth in blocks, 4 ttl ms,
                   then (rank, quota) pairs: how many requests each side is to take
lease_expire ARGV  1 fencing token, then prefix hashes to end; none: those whose time is over

Returns  lease_grant: OK; lease_expire: the hashes whose leases ended
Errors   FENCED     another lmpoold leads by now
         NORANK     a side is not up
         FULL       as many leases as may be are held: wait for one to end
         BADARGS    no side, or a number cannot be read

Holds    Only the leader changes leases, besides `route`, which uses them up, and `reap`.
]]
local LEASES_MOST = 256

local function lease_grant(a)
  local problem = fenced(a[1])
  if problem then return problem end
  local now, deep, ttl = now_ms(), tonumber(a[3] or ''), tonumber(a[4] or '')
  if not deep or not ttl or #a < 6 or #a % 2 ~= 0 or not match(a[2], '^%x+$') or #a[2] ~= DIGITS then
    return err('BADARGS', 'lease_grant takes token, hash, depth, ttl and (rank, quota) pairs')
  end
  local l = {depth = deep, deadline = now + ttl, sides = {}}
  for i = 5, #a, 2 do
    local c, quota = parse_row(call('HGET', P .. 'load', a[i])), tonumber(a[i + 1])
    if not c or c.state ~= 'up' then return err('NORANK', 'rank ' .. a[i] .. ' is not up') end
    if not quota or quota < 1 then return err('BADARGS', 'a quota must be at least 1') end
    l.sides[a[i]] = {epoch = c.epoch, quota = quota}
  end
  if call('HLEN', P .. 'leases') >= LEASES_MOST and call('HEXISTS', P .. 'leases', a[2]) == 0 then
    return err('FULL', LEASES_MOST .. ' leases are held: wait for one to end')
  end
  call('HSET', P .. 'leases', a[2], lease_text(l))
  leases_seen[P] = nil
  return 'OK'
end

local function lease_expire(a)
  local problem = fenced(a[1])
  if problem then return problem end
  if #a == 1 then return end_leases(now_ms()) end
  local ended = {}
  for i = 2, #a do
    if call('HDEL', P .. 'leases', a[i]) == 1 then ended[#ended + 1] = a[i] end
  end
  leases_seen[P] = nil
  return ended
end

on('lease_grant', lease_grant)
on('lease_expire', lease_expire)
