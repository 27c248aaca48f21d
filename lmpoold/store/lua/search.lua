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

-- How deep each of the `live` rows holds the prompt, as bounds, and what the request costs there. A row
-- is searched until its depth is known, or until it can neither take the request nor hold more than
-- another: then it is `worse`, and priced for the most that it may hold.
local function search(g, r, live, b, n)
  local best, held, deepest, open = nil, nil, 0, {}
  local function settle(c)
    local lo = c.lo
    local cost = price(g, r, c, lo)
    if lo > deepest then deepest = lo end
    if r.total - lo <= c.most then
      if not best or cost < best then best = cost end
      if (lo > 0 or c.fly > 0) and (not held or cost < held) then held = cost end
    end
  end
  for i = 1, #live do
    local c = live[i]
    c.worse, c.lo, c.hi = false, ends(c.pages, b, n)
    if c.fly > deepest then deepest = c.fly end
    if c.lo == c.hi then settle(c) else open[#open + 1] = c end
  end
  for i = 1, #open do
    local c = open[i]
    while c.lo < c.hi do
      c.worse = c.hi <= deepest and hopeless(g, price(g, r, c, c.hi), best, held)
      if c.worse then break end
      c.lo, c.hi = narrow(c.pages, b, c.lo, c.hi, deepest)
    end
    if not c.worse then settle(c) end
  end
  return deepest
end
