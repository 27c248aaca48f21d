--[[ match: how much of a prompt each candidate holds, and how loaded it is.

KEYS[1]  load       HASH    rank rows

Holds    Presence is prefix-closed on every rank (blocks are published parent first, reclaimed leaf
         first), so two names bound the longest published prefix and bisection finds it.
         A row is live only while its rank is `up` and its alive key names the row's epoch.
]]
local DIGITS = 32

-- Bounds on how many leading ones of n names are published, from whether the first and the last are.
local function bounds(first, last, n)
  if n == 0 then return 0, 0 end
  if last then return n, n end
  if first then return 1, n - 1 end
  return 0, 0
end

-- Bounds on the leading blocks of blob `b` (n names) published under `key`, from its two ends.
local function ends(key, b, n)
  if n == 0 then return 0, 0 end
  local v = call('HMGET', key, sub(b, 1, DIGITS), sub(b, -DIGITS))
  return bounds(v[1], v[2], n)
end

-- Narrow bounds by one step. `hint` is tried first: what one rank holds, another often holds too.
local function narrow(key, b, lo, hi, hint)
  local p = lo + hi + 1
  p = (p - p % 2) / 2
  if hint > lo and hint <= hi then p = hint elseif hint == lo then p = lo + 1 end
  if call('HEXISTS', key, sub(b, (p - 1) * DIGITS + 1, p * DIGITS)) == 1 then return p, hi end
  return lo, p - 1
end

-- Rows as last parsed or written, by rank key. A row's text tells whether it is still the same one.
local seen = {}

-- Fill `cache.rows` for the candidates: one read of the rows, one of the alive keys.
local function read_ranks(cache, wanted)
  if wanted == '*' and cache.all then return cache.all end
  local ranks, texts = {}, nil
  if wanted == '*' then
    local flat = call('HGETALL', P .. 'load')
    texts = {}
    for i = 1, #flat, 2 do ranks[#ranks + 1], texts[#texts + 1] = flat[i], flat[i + 1] end
    cache.all = ranks
  else
    for rank in gmatch(wanted, '[^,]+') do ranks[#ranks + 1] = rank end
    if #ranks > 0 then texts = call('HMGET', P .. 'load', unpack(ranks)) end
  end
  local missing, keys = {}, {}
  for i = 1, #ranks do
    local rank = ranks[i]
    if cache.rows[rank] == nil then
      local c = seen[P .. rank]
      if not c or c.text ~= texts[i] then
        c = parse_row(texts[i]) or false
        if c then
          c.text, c.pages, c.resv_key = texts[i], rank_key(rank, 'pages'), rank_key(rank, 'resv')
          c.alive_key = rank_key(rank, 'alive')
          seen[P .. rank] = c
        end
      end
      cache.rows[rank] = c
      if c then missing[#missing + 1], keys[#keys + 1] = c, c.alive_key end
    end
  end
  if #keys > 0 then
    local alive = call('MGET', unpack(keys))
    for i = 1, #missing do
      missing[i].live = missing[i].state == 'up' and alive[i] == missing[i].epoch
    end
  end
  return ranks
end
