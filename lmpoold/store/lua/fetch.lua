--[[ fetch: whether a request's prefix is brought along from a neighbour of the rank it goes to.

KEYS[1]  load       HASH    rank rows

Holds    A plan is opened before the request is dispatched, so the worker reads its order first.
         Of requests that lack the same blocks on a rank, the first opens the plan, the others join.
         It pays when computing the blocks costs fetch_ratio times what moving them does; without
         a measured link and a learnt prefill rate nothing is moved.
]]
-- How many leading blocks of blob `b` (n names) are published under `key`; `hint` is a guess.
local function published(key, b, n, hint)
  local lo, hi = ends(key, b, n)
  while lo < hi do lo, hi = narrow(key, b, lo, hi, hint) end
  return lo
end

-- The neighbour from which the blocks behind `hit` come cheapest: rank, depth there, us saved, us spent.
local function neighbour(g, rows, ranks, r, n, rank, hit)
  local others, names = {}, {}
  for i = 1, #ranks do
    local c = rows[ranks[i]]
    if c and c.live and ranks[i] ~= rank then
      others[#others + 1], names[#names + 1] = ranks[i], ranks[i] .. '>' .. rank
    end
  end
  if #others == 0 then return nil end
  local links, pace = call('HMGET', P .. 'links', unpack(names)), nil
  local best, deepest, best_saved, best_spent
  for i = 1, #others do
    local other = others[i]
    local fixed, each = match(links[i] or '', '^(%d+) (%d+)')
    local blocks = fixed and published(rows[other].pages, r.hashes, n, hit) - hit or 0
    if blocks > 0 and blocks >= g.fetch_min_blocks then
      if pace == nil then pace = call('HGET', rank_key(rank, 'info'), 'prefill_us') end
      local us = tonumber(pace or call('HGET', rank_key(other, 'info'), 'prefill_us') or '')
      if us then
        local saved, spent = blocks * g.block_size * us, fixed + blocks * each
        if not best or saved - g.fetch_ratio * spent > best_saved - g.fetch_ratio * best_spent then
          best, deepest, best_saved, best_spent = other, hit + blocks, saved, spent
        end
      end
    end
  end
  return best, deepest, best_saved, best_spent
end

-- The plan under way that brings a prompt's first `deep` blocks to `rank`, or nil; and their last name.
local function incoming(rows, r, rank, deep)
  local leaf = sub(r.hashes, (deep - 1) * DIGITS + 1, deep * DIGITS)
  local open = read_plan(call('HGET', rank_key(rank, 'incoming'), leaf) or '')
  if open and open.dst_epoch == rows[rank].epoch and open.phase ~= 'abort' then return open, leaf end
  return nil, leaf
end

-- Why no plan may be opened, or nil.
local function objection(g, from, rank, saved, spent)
  if saved < g.fetch_ratio * spent then return 'low_benefit' end
  if busy(g, from) or busy(g, rank) then return 'busy' end
  return nil
end

-- The plan that brings blocks from a neighbour, opened or joined, or nil; and its numbers in words.
local function decide_fetch(g, rows, ranks, r, n, rank, hit)
  if g.fetch == 0 or not g.paired then return nil end
  local way = r.way or {neighbour(g, rows, ranks, r, n, rank, hit)}
  local from, deep, saved, spent = way[1], way[2], way[3], way[4]
  if not from then return nil end
  local numbers = fmt('from=%s to=%s blocks=%d saved_us=%.0f cost_us=%.0f', from, rank, deep - hit, saved, spent)
  local open, leaf = incoming(rows, r, rank, deep)
  if open then return open.id, 'joins ' .. numbers end
  local why = objection(g, from, rank, saved, spent)
  if why then return nil, 'refused ' .. why .. ' ' .. numbers end
  local id = r.id .. '.' .. r.attempt
  if call('EXISTS', P .. 'plan:' .. id) == 1 then return nil, 'refused repeated ' .. numbers end
  call('HSET', rank_key(rank, 'incoming'), leaf, id)
  open_plan(g, {id = id, mode = 'copy', why = 'fetch', src = from, dst = rank,
    src_epoch = rows[from].epoch, dst_epoch = rows[rank].epoch,
    hashes = sub(r.hashes, 1, deep * DIGITS), first = hit, cost_us = fmt('%.0f', spent)})
  return id, 'opened ' .. numbers
end

-- The plan that a request to `rank` waits for, or nil; what was weighed stands in its record.
local function fetch(g, rows, ranks, r, n, rank, hit)
  local plan, said = decide_fetch(g, rows, ranks, r, n, rank, hit)
  if said then call('HSET', P .. 'req:' .. r.id, 'fetch', said) end
  if said and not plan then
    call('XADD', P .. 'plans:refused', 'MAXLEN', '~', 200, '*', 'why', 'fetch', 'for', r.id, 'said', said)
  end
  return plan
end

-- Count one request in eight for the prefix that it found, so that the count costs next to nothing.
local HEAT_EVERY = 8
local function heat(r, hit)
  if roll(HEAT_EVERY) ~= 0 then return end
  call('ZINCRBY', P .. 'hot', HEAT_EVERY, sub(r.hashes, (hit - 1) * DIGITS + 1, hit * DIGITS))
end
