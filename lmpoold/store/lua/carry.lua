--[[ carry: a rank that takes a request because its prefix can be brought there for less than the wait.

KEYS[1]  load       HASH    rank rows

Holds    Asked only when the owner of the prefix would take the request, and only of the rank that would
         be cheapest if it had the prefix: where it cannot win so, nothing is read.
         What it promises is true within the same call: the plan can be opened, or is under way.
         What it found of the way stays with the request, for the plan that `fetch` opens.
]]
-- The live row that would be cheapest with `deep` blocks of the prompt, if it beats `owner` so.
local function contender(g, r, live, owner, deep)
  local tail, best, least = max(1, r.ntok - deep * g.block_size) * g.w_prefill, nil, owner.cost - g.fetch_slack
  for i = 1, #live do
    local c = live[i]
    if c ~= owner and c.deep < deep and c.verdict ~= 'full' then
      local cost = c.queue + c.hop + tail
      if cost < least then best, least = c, cost end
    end
  end
  return best
end

-- The row to which the prefix of `owner`, who holds `owner.hi` blocks, is worth bringing; priced so.
local function carried(g, rows, ranks, r, n, live, owner)
  local deep = owner.hi
  if g.fetch == 0 or deep == 0 or not g.paired then return nil end
  local c = contender(g, r, live, owner, deep)
  if not c then return nil end
  if c.worse then
    c.worse, c.hi = false, published(c.pages, r.hashes, n, deep)
    settle(g, r, c, c.hi)
  end
  if c.verdict ~= 'ok' then return nil end
  local from, depth, saved, spent = neighbour(g, rows, ranks, r, n, c.rank, c.hi)
  if not from or depth <= c.deep then return nil end
  if not incoming(rows, r, c.rank, depth) and objection(g, from, c.rank, saved, spent) then return nil end
  -- The way takes as long as computing so many tokens would.
  local way = spent / saved * (depth - c.hi) * g.block_size
  local known = min(depth * g.block_size, r.ntok - 1)
  local cost = c.cost - g.w_prefill * (known - c.deep * g.block_size - way)
  if cost + g.fetch_slack >= owner.cost then return nil end
  c.cost, c.deep, r.way = cost, depth, {from, depth, saved, spent}
  return c
end
