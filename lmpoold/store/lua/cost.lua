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

-- Note on row `c` what it says by itself: the work that goes before a request, and how many blocks are
-- free and can be had. It counts until the row or `g` changes.
local function weigh(g, c)
  local room = c.free - c.resv
  c.ahead = c.wait_tok + c.resv_tok
  c.load = g.w_wait * c.ahead + g.w_run * c.run_tok + g.w_seq * c.run
  c.room, c.most = room > 0 and room or 0, room + c.reclaim
  c.weighed, c.said_queue = g, nil
end

-- Note on row `c` what the request costs there whatever the rank holds: what goes before it, the way
-- from its origin, what is in flight there, and from which depth on a lease counts.
local function approach(g, r, rank, c, fly, lease)
  if c.weighed ~= g then weigh(g, c) end
  local queue, hop = c.load, 0
  if r.priority > 0 then
    queue = g.w_wait * (c.ahead * g.w_urgent) + g.w_run * c.run_tok + g.w_seq * c.run
  end
  if r.origin then hop = g.w_hop * hops(g, r.origin, rank) end
  c.rank, c.queue, c.hop, c.fly = rank, queue, hop, fly and fly[rank] or 0
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
