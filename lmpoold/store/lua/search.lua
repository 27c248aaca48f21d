--[[ search: how deep each candidate holds a prompt, no deeper than the choice needs.

KEYS[1]  load       HASH    rank rows

Holds    A rank left unsearched could not have taken the request by any rule of route.lua, and holds no
         more of the prompt than another one.
]]
-- Whether a row of price `cost` or more can neither be the cheapest, nor the owner, nor take a spill.
-- `best` is the least cost known, `held` the least known of a row that holds some of the prompt.
local function hopeless(g, cost, best, held)
  if not best or cost <= best then return false end
  local owner = held or best + g.bypass_slack
  if g.paired then owner = owner + g.spill_slack end
  return cost > owner
end

-- Ask every live row for the first and the last name of each request: what `ends` would, once a call.
local function ask(rows, todo)
  local names = {}
  for i = 1, #todo do
    local b = todo[i].hashes
    names[2 * i - 1], names[2 * i] = sub(b, 1, DIGITS), sub(b, -DIGITS)
  end
  for _, c in pairs(rows) do
    if c and c.live then c.told = call('HMGET', c.pages, unpack(names)) end
  end
end

-- Of the search under way: the least cost known, that of a row which holds some of the prompt, and
-- the most that any row is known to hold, or is about to.
local best, held, deepest

-- Row `c` holds `lo` blocks: price the request there.
local function settle(g, r, c, lo)
  local cost, need, fly = price(g, r, c, lo), r.total - lo, c.fly
  c.need, c.deep, c.verdict = need, fly > lo and fly or lo, 'full'
  if lo > deepest then deepest = lo end
  if need <= c.most then
    c.verdict = 'ok'
    if not best or cost < best then best = cost end
    if (lo > 0 or fly > 0) and (not held or cost < held) then held = cost end
  end
end

-- How deep each of the `live` rows holds the prompt, as bounds, and what the request costs there. A row
-- is searched until its depth is known, or until it can neither take the request nor hold more than
-- another: then it is `worse`, and priced for the most that it may hold.
local function search(g, r, live, b, n)
  local open, first, last = nil, 2 * r.place - 1, 2 * r.place
  best, held, deepest = nil, nil, 0
  for i = 1, #live do
    local c = live[i]
    local lo, hi = bounds(c.told[first], c.told[last], n)
    if c.fly > deepest then deepest = c.fly end
    c.worse, c.lo, c.hi = false, lo, hi
    if lo == hi then settle(g, r, c, lo)
    else
      open = open or {}
      open[#open + 1] = c
    end
  end
  for i = 1, open and #open or 0 do
    local c = open[i]
    local lo, hi, priced = c.lo, c.hi, nil
    while lo < hi do
      if hi ~= priced and hi <= deepest and hopeless(g, price(g, r, c, hi), best, held) then break end
      priced = hi
      lo, hi = narrow(c.pages, b, lo, hi, deepest)
    end
    c.lo, c.hi, c.worse = lo, hi, lo < hi
    if lo < hi then
      c.need, c.deep, c.verdict = r.total - hi, c.fly > hi and c.fly or hi, 'worse'
    else settle(g, r, c, lo) end
  end
  return deepest
end
