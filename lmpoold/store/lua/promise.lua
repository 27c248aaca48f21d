--[[ promise: what a rank owes to requests that the call under way gave it.

KEYS[1]  load       HASH    rank rows

Holds    Rows and reservations of a batch are written once, at its end; until then `seen` has no such row,
         for it no longer is what its text says.
]]
-- Reserve for request `r` (n names) on row `c`: what it lacks there, and its work in tokens.
local function promise(g, cache, r, c, n)
  local known, rank = r.ntok - c.deep * g.block_size, c.rank
  local work = floor((known > 1 and known or 1) + g.w_decode * r.nmax)
  seen[P .. rank] = nil
  c.resv, c.resv_tok, c.weighed = c.resv + c.need, c.resv_tok + work, nil
  local promised = c.promised
  if not promised then
    promised = {}
    c.promised = promised
  end
  promised[#promised + 1] = r.id .. '.' .. r.attempt
  promised[#promised + 1] = digits(c.need) .. fmt(':%d:', work) .. cache.resv_ends ..
    (n > 0 and sub(r.hashes, -DIGITS) or '-')
end

local function keep_promises(cache)
  for rank, c in pairs(cache.rows) do
    if c and c.promised then
      call('HSET', c.resv_key, unpack(c.promised))
      c.text, c.promised = write_row(rank, c), nil
      seen[P .. rank] = c
    end
  end
end
