--[[ flight: prefixes that a dispatched request is about to compute, so that its siblings follow it.

KEYS[1]  load       HASH    rank rows

Holds    A hint in the server's memory, never state: it is lost with the library, ends after
         `flight_ttl_ms` or with the rank's epoch, and is bounded. What a worker publishes takes its place.
]]
-- Depths at which a prefix is remembered, beside the whole chain: siblings share some beginning of it.
local MARKS = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
  2048, 3072, 4096}
local FLIGHT_MOST = 16384

-- How many marks lie above the leaf of a prompt of `n` blocks, by n; remembered, for it is asked often.
local below = {[0] = 0}
local function marks_below(n)
  local count = below[n]
  if not count then
    count = 0
    while MARKS[count + 1] and MARKS[count + 1] < n do count = count + 1 end
    below[n] = count
  end
  return count
end

-- Remember that `rank` is about to compute blob `b` (n names) from block `hit` on.
local function take_off(b, n, hit, rank, now)
  if n <= hit then return end
  local f = flying[P]
  if not f then
    f = {young = {}, old = {}, count = 0, at = now}
    flying[P] = f
  end
  local young, count = f.young, marks_below(n)
  for i = 0, count do
    local depth = i > 0 and MARKS[i] or n
    if depth > hit or depth == 1 then  -- always the first: without it nobody looks further
      local name = sub(b, (depth - 1) * DIGITS + 1, depth * DIGITS)
      local ranks = young[name]
      if ranks then ranks[rank] = now
      else
        ranks = f.old[name]
        if ranks then ranks[rank] = now else ranks = {[rank] = now} end
        young[name] = ranks
        f.count = f.count + 1
      end
    end
  end
  if f.count > FLIGHT_MOST then f.young, f.old, f.count = {}, f.young, 0 end
end

-- Depth in flight by rank key, or nil if nothing of blob `b` (n names) is.
local function in_flight(g, rows, b, n, now)
  local f = flying[P]
  if not f or n == 0 then return nil end
  local ttl, young, old = g.flight_ttl_ms, f.young, f.old
  if now - f.at > ttl then
    young, old = {}, young
    f.young, f.old, f.count, f.at = young, old, 0, now
  end
  local name = sub(b, 1, DIGITS)
  local first = young[name] or old[name]
  if not first then return nil end
  -- The first block names every rank; each is then sought from the whole prompt down to its deepest mark.
  local found, left, i, deep = {}, 0, marks_below(n), n
  for rank, at in pairs(first) do
    local c = rows[rank]
    if c and c.live and now - at < ttl and at >= c.born then found[rank], left = 1, left + 1 end
  end
  if left == 0 then return nil end
  while left > 0 and deep > 1 do
    name = sub(b, (deep - 1) * DIGITS + 1, deep * DIGITS)
    local ranks = young[name] or old[name]
    if ranks then
      for rank, at in pairs(ranks) do
        if found[rank] == 1 and now - at < ttl and at >= rows[rank].born then
          found[rank], left = deep, left - 1
        end
      end
    end
    deep, i = MARKS[i] or 1, i - 1
  end
  return found
end
