--[[ route: choose a rank for up to 64 requests, reserve there, dispatch, acknowledge. Atomic.

KEYS[1]  load       HASH    rank rows
ARGV     8 a request:
  1 id              text    request id
  2 source          text    ingress entry id, or `parked`
  3 meta            text    "prompt_tokens max_tokens deadline_ms attempt [priority]": deadline is unix ms,
                            0 = default
  4 hashes          hex     32 digits a complete block, root first
  5 candidates      text    ranks by comma, or `*` for every rank; then `@rank` if it has an origin
  6 client          text    the stream that answers go to
  7 payload         json    handed to the worker unread
  8 tokens          int32   prompt token ids, little-endian, handed to the worker unread

Returns  a text a request: `id rank hit need` | `id parked` | `id dup` | `id refused <code>`
Errors   NOCFG      no lmpoold has described the pool yet
         BADARGS    ARGV is not 8 a request, or a field cannot be read; nothing was done

Holds    Exactly one of all calls for one (id, source) dispatches it: gated by XACK or by `parked`.
         A rank is a candidate only while its row says `up` and its alive key names the row's epoch.
         hit is a hint: the longest published prefix, by bisection (presence is prefix-closed).
         The cheapest takes it, but an owner of its prefix keeps it while the cheapest is not cheaper by
         bypass_slack, and lets a much idler neighbour have it for at most spill_slack more. Where a plan can
         bring the prefix along, a rank costs what the way does instead of what computing it would.
         `terms` of the request: a candidate each, by `;`: rank, hit, need, free, reclaimable, queue, cost,
         verdict (ok full worse down drain), and if they say anything: deep (hit and what is in flight),
         reclaim, hop, lease. worse: hit is at most, cost at least, what it says.
]]
-- The row of the least cost that fits and passes `test`; equal ones are drawn from.
local function cheapest(live, test)
  local best, ties = nil, 0
  for i = 1, #live do
    local c = live[i]
    if c.verdict == 'ok' and (not test or test(c)) then
      local cost = c.cost
      if not best or cost < best.cost then
        best, ties = c, 1
      elseif cost == best.cost then
        ties = ties + 1
        if roll(ties) == 0 then best = c end
      end
    end
  end
  return best
end

local function holds(c) return c.deep > 0 end

-- The rule on priced rows: who takes the request, and whether as a neighbour's spill.
local function decide(g, live)
  local best = cheapest(live)
  if not best then return nil end
  local owner = best.deep > 0 and best or cheapest(live, holds)
  if not owner then return best end
  if owner ~= best then
    local saved = g.w_prefill * owner.deep * g.block_size
    if best.cost + min(g.bypass_slack, saved) < owner.cost then return best end
  end
  local near = g.near[owner.rank]
  local spill = near and cheapest(live, function(c)
    return near[c.rank] and owner.queue - c.queue >= g.spill_gap and c.cost <= owner.cost + g.spill_slack
  end)
  if spill then return spill, true end
  return owner
end

local function reason_of(best, spilled, deepest, n)
  if not best then return 'no_capacity' end
  if n == 0 then return 'no_complete_block' end
  if spilled then return 'pair_spill' end
  if best.lease > 0 then return 'placement_lease' end
  if best.deep > best.hi and best.deep == deepest then return 'prefix_in_flight' end
  if best.deep > 0 then return best.deep < deepest and 'shorter_prefix_cheaper' or 'prefix_hit' end
  return deepest > 0 and 'load_outweighs_prefix' or 'no_prefix_hit'
end

-- The row that takes the request, or nil; why; and what was known of each candidate.
local function choose(g, rows, r, ranks, n, lease)
  local fly, live = in_flight(g, rows, r.hashes, n, r.now), {}
  for i = 1, #ranks do
    local c = rows[ranks[i]]
    if c and c.live then
      approach(g, r, ranks[i], c, fly, lease)
      live[#live + 1] = c
    end
  end
  local deepest = search(g, r, live, r.hashes, n)
  local best, spilled = decide(g, live)
  local other = best and not spilled and carried(g, rows, ranks, r, n, live, best)
  local terms = terms_of(rows, ranks)
  if other then return other, 'prefix_fetched', terms, deepest end
  return best, reason_of(best, spilled, deepest, n), terms, deepest
end
