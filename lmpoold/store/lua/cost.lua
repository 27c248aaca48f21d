--[[ cost: what one candidate would mean for one request. Arithmetic on what was read before.

KEYS[1]  load       HASH    rank rows

Holds    One unit throughout: computing a prompt token is 1. The README of the store has the formula.
         A longer hit never costs more, so the price of an upper bound is a lower bound of the price.
]]
-- 0 the request's origin, 1 a neighbour of it, 2 elsewhere; 0 everywhere for a request without one.
local function hops(g, origin, rank)
  if not origin or origin == rank then return 0 end
  return g.near[origin] and g.near[origin][rank] and 1 or 2
end

-- Note on row `c` what the request costs there whatever the rank holds: what goes before it, the way
-- from its origin, what is in flight there, and from which depth on a lease counts.
local function approach(g, r, rank, c, fly, lease)
  local ahead = c.wait_tok + c.resv_tok
  if r.priority > 0 then ahead = ahead * g.w_urgent end
  c.rank, c.queue = rank, g.w_wait * ahead + g.w_run * c.run_tok + g.w_seq * c.run
  c.hop = r.origin and g.w_hop * hops(g, r.origin, rank) or 0
  c.fly = fly and fly[rank] or 0
  c.lease_from = lease and leased(lease, rank, c) and lease.depth or nil
end

-- Cost of the request on row `c` if it holds `hit` blocks, and of it what is reclaim and what lease.
local function price(g, r, c, hit)
  local bs, deep = g.block_size, c.fly > hit and c.fly or hit
  local prefill = g.w_prefill * max(1, r.ntok - deep * bs)
  if deep > hit then prefill = prefill + g.w_flight * (deep - hit) * bs end
  local short = r.total - hit - max(0, c.free - c.resv)
  local reclaim = short > 0 and g.w_reclaim * bs * short or 0
  local off = c.lease_from and hit >= c.lease_from and g.w_lease or 0
  return c.queue + prefill + reclaim + c.hop - off, reclaim, off
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
