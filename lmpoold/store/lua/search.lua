--[[ search: how deep each candidate holds a prompt, no deeper than the choice needs.

KEYS[1]  load       HASH    rank rows

Holds    A rank left unsearched could not have taken the request by any rule of route.lua, and holds no
         more of the prompt than another one.
]]
-- How deep each of the `live` rows holds the prompt, as bounds. A row is searched until its depth is
-- known, or until it can neither take the request nor hold more than another: then `worse` is set.
local function search(g, r, live, b, n)
  local best_cost, deepest, open = nil, 0, {}
  local margin = g.bypass_slack + (g.paired and g.spill_slack or 0)
  local function settle(c)
    deepest = max(deepest, c.lo)
    if r.total - c.lo <= c.free - c.resv + c.reclaim then
      local cost = price(g, r, c, c.lo)
      if not best_cost or cost < best_cost then best_cost = cost end
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
      c.worse = best_cost and c.hi <= deepest and price(g, r, c, c.hi) > best_cost + margin
      if c.worse then break end
      c.lo, c.hi = narrow(c.pages, b, c.lo, c.hi, deepest)
    end
    if not c.worse then settle(c) end
  end
  return deepest
end
