--[[ lease: placement leases, which make a rank cheaper for a hot prefix for a while.

KEYS[1]  load       HASH    rank rows

Holds    A lease is a hint: it lowers the cost of a rank that holds the prefix, and overrides nothing.
         It names its owners' epochs and dies with them, with its quota, or with its time.
]]
local LEASES_AGE_MS = 1000

local function lease_text(l)
  local sides = {}
  for rank, side in pairs(l.sides) do
    if side.quota > 0 then sides[#sides + 1] = rank .. ':' .. side.epoch .. ':' .. fmt('%d', side.quota) end
  end
  table.sort(sides)
  return #sides > 0 and fmt('%d %.0f %s', l.depth, l.deadline, concat(sides, ' ')) or nil
end

local function parse_lease(text)
  local depth, deadline, rest = match(text, '^(%d+) (%d+) (.+)$')
  local l = {depth = tonumber(depth), deadline = tonumber(deadline), sides = {}}
  for rank, epoch, quota in gmatch(rest, '(%d+):(%d+):(%d+)') do
    l.sides[rank] = {epoch = epoch, quota = tonumber(quota)}
  end
  return l
end

-- All leases by hash, and their depths, deepest first. A copy that is read again after a second.
local function read_leases(now)
  local s = leases_seen[P]
  if s and now >= s.at and now < s.at + LEASES_AGE_MS then return s end
  s = {at = now, by = {}, depths = {}}
  local flat, met = call('HGETALL', P .. 'leases'), {}
  for i = 1, #flat, 2 do
    local l = parse_lease(flat[i + 1])
    s.by[flat[i]] = l
    if not met[l.depth] then s.depths[#s.depths + 1], met[l.depth] = l.depth, true end
  end
  table.sort(s.depths, function(x, y) return x > y end)
  leases_seen[P] = s
  return s
end

-- The deepest lease on a beginning of blob `b` (n names), with its hash; nil for none.
local function lease_on(b, n, now)
  local s = read_leases(now)
  local depths = s.depths
  for i = 1, #depths do
    local deep = depths[i]
    if deep <= n then
      local name = sub(b, (deep - 1) * DIGITS + 1, deep * DIGITS)
      local l = s.by[name]
      if l and l.depth == deep and l.deadline > now then return l, name end
    end
  end
end

-- Whether row `c` of `rank` is a side with quota left.
local function leased(l, rank, c)
  local side = l.sides[rank]
  return side ~= nil and side.quota > 0 and side.epoch == c.epoch
end

-- A request goes to `rank` under the lease: one of its quota is used up.
local function use_lease(l, name, rank)
  l.sides[rank].quota = l.sides[rank].quota - 1
  local text = lease_text(l)
  if text then call('HSET', P .. 'leases', name, text)
  else
    call('HDEL', P .. 'leases', name)
    leases_seen[P].by[name] = nil  -- or it would hide one on a shorter beginning
  end
end

-- End the leases whose time is over, or which no live epoch holds any more; returns their hashes.
local function end_leases(now)
  local flat, ended = call('HGETALL', P .. 'leases'), {}
  for i = 1, #flat, 2 do
    local l, held = parse_lease(flat[i + 1]), false
    for rank, side in pairs(l.sides) do
      local c = parse_row(call('HGET', P .. 'load', rank))
      held = held or (c and c.state ~= 'down' and c.epoch == side.epoch)
    end
    if l.deadline <= now or not held then ended[#ended + 1] = flat[i] end
  end
  if #ended > 0 then
    call('HDEL', P .. 'leases', unpack(ended))
    leases_seen[P] = nil
  end
  return ended
end
