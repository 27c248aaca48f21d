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
]]
-- The cheapest candidate that has room. Appends a field a candidate, with its terms, to `terms`.
local function choose(g, cache, ranks, b, n, ntok, draw, attempt, terms)
  local bs, total = g.block_size, ceil((ntok + 1) / g.block_size)
  local best, best_cost, best_hit, best_need, ties, deepest = nil, nil, 0, 0, 0, 0
  local hint = 0
  for i = 1, #ranks do
    local rank, c = ranks[i], cache.rows[ranks[i]]
    if c and c.live then
      local hit = depth(c.pages, b, n, hint)
      if hit > 0 then hint = hit end
      local need, free = total - hit, c.free - c.resv
      local queue = g.w_wait * (c.wait_tok + c.resv_tok) + g.w_run * c.run_tok + g.w_seq * c.run
      local cost = queue + g.w_prefill * max(1, ntok - hit * bs)
      if need > free then cost = cost + g.w_reclaim * bs * (need - max(0, free)) end
      local fits = need <= free + c.reclaim
      if hit > deepest then deepest = hit end
      terms[#terms + 1] = 'c' .. rank
      terms[#terms + 1] = fmt('%s %d %d %d %d %d %d %s', attempt, hit, need, free, c.reclaim, queue,
        cost, fits and 'ok' or 'full')
      if fits then
        if not best or cost < best_cost then
          best, best_cost, best_hit, best_need, ties = rank, cost, hit, need, 1
        elseif cost == best_cost then
          ties = ties + 1
          if (draw + i * 7919) % ties == 0 then best, best_hit, best_need = rank, hit, need end
        end
      end
    else
      terms[#terms + 1] = 'c' .. rank
      terms[#terms + 1] = attempt .. ' 0 0 0 0 0 0 ' .. (c and c.state == 'drain' and 'drain' or 'down')
    end
  end
  local reason = 'no_complete_block'
  if not best then reason = 'no_capacity'
  elseif best_hit > 0 then reason = best_hit < deepest and 'shorter_prefix_cheaper' or 'prefix_hit'
  elseif deepest > 0 then reason = 'load_outweighs_prefix'
  elseif n > 0 then reason = 'no_prefix_hit' end
  return best, best_hit, best_need, reason, deepest
end
