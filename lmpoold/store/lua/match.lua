--[[ match: how much of a prompt each candidate holds, and how loaded it is.

KEYS[1]  load       HASH    rank rows

Holds    Presence is prefix-closed on every rank (blocks are published parent first, reclaimed leaf
         first), so the longest published prefix is found by bisection.
         A row is live only while its rank is `up` and its alive key names the row's epoch.
]]
local DIGITS = 32

-- Number of leading blocks of blob `b` (n names) published under `key`. `hint` is tried first: what
-- one rank holds of a prompt, the next one often holds too.
local function depth(key, b, n, hint)
  if n == 0 or call('HEXISTS', key, sub(b, 1, DIGITS)) == 0 then return 0 end
  if n == 1 or call('HEXISTS', key, sub(b, (n - 1) * DIGITS + 1)) == 1 then return n end
  local lo, hi = 1, n - 1
  local p = (hint > 1 and hint < n) and hint or floor((lo + hi + 1) / 2)
  while lo < hi do
    if call('HEXISTS', key, sub(b, (p - 1) * DIGITS + 1, p * DIGITS)) == 1 then lo = p else hi = p - 1 end
    p = (lo == p and p == hint) and p + 1 or floor((lo + hi + 1) / 2)
  end
  return lo
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
