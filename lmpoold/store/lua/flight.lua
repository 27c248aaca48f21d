--[[ flight: prefixes that a dispatched request is about to compute, so that its siblings follow it.

KEYS[1]  load       HASH    rank rows

Holds    A hint in the server's memory, never state: it is lost with the library, ends after
         `flight_ttl_ms` or with the rank's epoch, and is bounded. What a worker publishes takes its place.
]]
-- Depths at which a prefix is remembered, beside the whole chain: siblings share some beginning of it.
local MARKS = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
  2048, 3072, 4096}
local FLIGHT_MOST = 16384

-- Remember that `rank` is about to compute blob `b` (n names) from block `hit` on.
local function take_off(b, n, hit, rank, now)
  if n <= hit then return end
  local f = flying[P]
  if not f then
    f = {young = {}, old = {}, count = 0, at = now}
    flying[P] = f
  end
  local function mark(depth)
    local name = sub(b, (depth - 1) * DIGITS + 1, depth * DIGITS)
    local ranks = f.young[name]
    if not ranks then
      ranks = f.old[name] or {}
      f.young[name] = ranks
      f.count = f.count + 1
    end
    ranks[rank] = now
  end
  mark(1)  -- always: without it nobody looks further
  for i = 2, #MARKS do
    if MARKS[i] >= n then break end
    if MARKS[i] > hit then mark(MARKS[i]) end
  end
  if n > 1 then mark(n) end
  if f.count > FLIGHT_MOST then f.young, f.old, f.count = {}, f.young, 0 end
end

-- Depth in flight by rank key, or nil if nothing of blob `b` (n names) is.
local function in_flight(g, rows, b, n, now)
  local f = flying[P]
  if not f or n == 0 then return nil end
  local ttl = g.flight_ttl_ms
  if now - f.at > ttl then f.young, f.old, f.count, f.at = {}, f.young, 0, now end
  local name = sub(b, 1, DIGITS)
  local first = f.young[name] or f.old[name]
  if not first then return nil end
  -- The first block names every rank; each is then sought from the whole prompt down to its deepest mark.
  local found, left, i, deep = {}, 0, #MARKS, n
  for rank, at in pairs(first) do
    local c = rows[rank]
    if c and c.live and now - at < ttl and at >= c.born then found[rank], left = 1, left + 1 end
  end
  if left == 0 then return nil end
  while left > 0 and deep > 1 do
    name = sub(b, (deep - 1) * DIGITS + 1, deep * DIGITS)
    local ranks = f.young[name] or f.old[name]
    if ranks then
      for rank, at in pairs(ranks) do
        if found[rank] == 1 and now - at < ttl and at >= rows[rank].born then
          found[rank], left = deep, left - 1
        end
      end
    end
    while i > 1 and MARKS[i] >= deep do i = i - 1 end
    deep = MARKS[i]
  end
  return found
end
