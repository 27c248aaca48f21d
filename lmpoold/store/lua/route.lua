--[[ route: choose a rank for up to 64 requests, reserve there, dispatch, acknowledge. Atomic.

KEYS[1]  load       HASH    rank rows
ARGV     8 a request:
  1 id              text    request id
  2 source          text    ingress entry id, or `parked`
  3 meta            text    "prompt_tokens max_tokens deadline_ms attempt": deadline is unix ms, 0 = default
  4 hashes          hex     32 digits a complete block, root first
  5 candidates      text    ranks by comma, or `*` for every rank
  6 client          text    the stream that answers go to
  7 payload         json    handed to the worker unread
  8 tokens          text    prompt token ids by blank, handed to the worker

Returns  a text a request: `id rank hit need` | `id parked` | `id dup` | `id refused <code>`
Errors   NOCFG      no lmpoold has described the pool yet
         BADARGS    ARGV is not 8 a request, or a field cannot be read; nothing was done

Holds    Exactly one of all calls for one (id, source) dispatches it: gated by XACK or by `parked`.
         A rank is a candidate only while its row says `up` and its alive key names the row's epoch.
         hit is a hint: the longest published prefix, by bisection (presence is prefix-closed).
         `terms` of the request: a candidate each, by `;`: rank, hit, need, free, reclaimable, queue,
         cost, verdict (ok full worse down drain); worse: hit is at most, cost at least, what it says.
]]
-- Cost of a request of `total` blocks and `ntok` tokens on rank `c`, of which it holds `hit` blocks.
local function price(g, c, hit, total, ntok)
  local cost = c.queue + g.w_prefill * max(1, ntok - hit * g.block_size)
  local short = total - hit - max(0, c.free - c.resv)
  if short > 0 then cost = cost + g.w_reclaim * g.block_size * short end
  return cost
end

-- How deep each live candidate holds the prompt, as bounds. A candidate is searched until its depth is
-- known, or until it can neither be the cheapest nor hold more than another: then `worse` is set.
local function search(g, cache, ranks, b, n, total, ntok)
  local best_cost, deepest, open = nil, 0, {}
  local function settle(c)
    deepest = max(deepest, c.lo)
    if total - c.lo <= c.free - c.resv + c.reclaim then
      local cost = price(g, c, c.lo, total, ntok)
      if not best_cost or cost < best_cost then best_cost = cost end
    end
  end
  for i = 1, #ranks do
    local c = cache.rows[ranks[i]]
    if c and c.live then
      c.queue = g.w_wait * (c.wait_tok + c.resv_tok) + g.w_run * c.run_tok + g.w_seq * c.run
      c.worse, c.lo, c.hi = false, ends(c.pages, b, n)
      if c.lo == c.hi then settle(c) else open[#open + 1] = c end
    end
  end
  for i = 1, #open do
    local c = open[i]
    while c.lo < c.hi do
      c.worse = best_cost and c.hi <= deepest and price(g, c, c.hi, total, ntok) > best_cost
      if c.worse then break end
      c.lo, c.hi = narrow(c.pages, b, c.lo, c.hi, deepest)
    end
    if not c.worse then settle(c) end
  end
  return deepest
end

-- The cheapest candidate that has room, and what was known of each one.
local function choose(g, cache, ranks, b, n, ntok, draw)
  local total = ceil((ntok + 1) / g.block_size)
  local deepest = search(g, cache, ranks, b, n, total, ntok)
  local best, best_cost, best_hit, best_need, ties, terms = nil, nil, 0, 0, 0, {}
  for i = 1, #ranks do
    local rank, c = ranks[i], cache.rows[ranks[i]]
    if c and c.live then
      local hit, need, free = c.hi, total - c.hi, c.free - c.resv
      local cost, verdict = price(g, c, hit, total, ntok), 'ok'
      if c.worse then verdict = 'worse'
      elseif need > free + c.reclaim then verdict = 'full'
      elseif not best or cost < best_cost then
        best, best_cost, best_hit, best_need, ties = rank, cost, hit, need, 1
      elseif cost == best_cost then
        ties = ties + 1
        if (draw + i * 7919) % ties == 0 then best, best_hit, best_need = rank, hit, need end
      end
      terms[i] = fmt('%s %d %d %d %d %d %d %s', rank, hit, need, free, c.reclaim, c.queue, cost, verdict)
    else
      terms[i] = rank .. ' 0 0 0 0 0 0 ' .. (c and c.state == 'drain' and 'drain' or 'down')
    end
  end
  local reason = 'no_complete_block'
  if not best then reason = 'no_capacity'
  elseif best_hit > 0 then reason = best_hit < deepest and 'shorter_prefix_cheaper' or 'prefix_hit'
  elseif deepest > 0 then reason = 'load_outweighs_prefix'
  elseif n > 0 then reason = 'no_prefix_hit' end
  return best, best_hit, best_need, reason, concat(terms, ';'), deepest
end
