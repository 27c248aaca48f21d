--[[ cost: what one candidate would mean for one request. Arithmetic on what was read before.

KEYS[1]  load       HASH    rank rows

Holds    One unit throughout: computing a prompt token is 1. The README of the store has the formula.
         A longer hit never costs more, so the price of an upper bound is a lower bound of the price.
]]
-- Note on `g` who is near whom, as near['0']['1'] both ways: the pairs that `cfg` names, or else those
-- between which the leader found a link. As old as the rest of `g`.
local function meet(g)
  if g.near then return end
  local near, named = {}, g.pairs
  if named == '' then named = concat(call('HKEYS', P .. 'links'), ',') end
  for x, y in gmatch(named, '(%d+)[->](%d+)') do
    if x ~= y then
      near[x], near[y] = near[x] or {}, near[y] or {}
      near[x][y], near[y][x] = true, true
    end
  end
  g.near, g.paired = near, next(near) ~= nil
end

-- 0 the request's origin, 1 a neighbour of it, 2 elsewhere; 0 everywhere for a request without one.
local function hops(g, origin, rank)
  if not origin or origin == rank then return 0 end
  return g.near[origin] and g.near[origin][rank] and 1 or 2
end

-- Note on row `c` what the request costs there whatever the rank holds: what goes before it, the way
-- from its origin, what is in flight there, and from which depth on a lease counts; and how many of its
-- blocks are free, and how many can be had.
local function approach(g, r, rank, c, fly, lease)
  local ahead, room = c.wait_tok + c.resv_tok, c.free - c.resv
  if r.priority > 0 then ahead = ahead * g.w_urgent end
  c.rank, c.queue = rank, g.w_wait * ahead + g.w_run * c.run_tok + g.w_seq * c.run
  c.room, c.most = room > 0 and room or 0, room + c.reclaim
  c.hop = r.origin and g.w_hop * hops(g, r.origin, rank) or 0
  c.fly = fly and fly[rank] or 0
  c.lease_from = lease and leased(lease, rank, c) and lease.depth or nil
end

-- Note on row `c` the cost of the request if the rank holds `hit` blocks, and of it what is reclaim
-- and what lease. Returns the cost.
local function price(g, r, c, hit)
  local bs, deep = g.block_size, c.fly
  if deep < hit then deep = hit end
  local prefill, short, reclaim, off = r.ntok - deep * bs, r.total - hit - c.room, 0, 0
  if prefill < 1 then prefill = 1 end
  prefill = g.w_prefill * prefill
  if deep > hit then prefill = prefill + g.w_flight * (deep - hit) * bs end
  if short > 0 then reclaim = g.w_reclaim * bs * short end
  if c.lease_from and hit >= c.lease_from then off = g.w_lease end
  local cost = c.queue + prefill + reclaim + c.hop - off
  c.cost, c.pressure, c.lease = cost, reclaim, off
  return cost
end

-- Of candidates `ranks`, those a request with an origin may go to: all, if none of them is live.
local function within(g, rows, r, ranks)
  if not r.origin or g.origin_hops >= 2 then return ranks end
  local kept = {}
  for i = 1, #ranks do
    local c = rows[ranks[i]]
    if c and c.live and hops(g, r.origin, ranks[i]) <= g.origin_hops then kept[#kept + 1] = ranks[i] end
  end
  return #kept > 0 and kept or ranks
end
