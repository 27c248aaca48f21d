--[[ terms: what was known of each candidate of a request, in words.

KEYS[1]  load       HASH    rank rows

Holds    The text is the one that route.lua tells of. Making a number's text costs as much as many a
         read, so block counts are kept, and what a row says of itself while that stays the same.
]]
local COUNTS = 4096
local counts = {}

-- The text of a count of blocks.
local function digits(n)
  local text = counts[n]
  if not text then
    text = fmt('%d', n)
    if n >= 0 and n < COUNTS then counts[n] = text end
  end
  return text
end

local function terms_of(rows, ranks)
  local terms, counts = {}, counts
  for i = 1, #ranks do
    local rank = ranks[i]
    local c = rows[rank]
    if c and c.live then
      local hit, need, queue = c.hi, c.need, c.queue
      if c.said_queue ~= queue then  -- as long as this stays the same, what is free does: see `weigh`
        c.said, c.said_queue = fmt(' %d %d %d ', c.most - c.reclaim, c.reclaim, queue), queue
      end
      local text = rank .. ' ' .. (counts[hit] or digits(hit)) .. ' ' .. (counts[need] or digits(need)) ..
        c.said .. fmt('%d ', c.cost) .. c.verdict
      if c.pressure > 0 or c.hop > 0 or c.lease > 0 then
        text = fmt('%s %d %d %d %d', text, c.deep, c.pressure, c.hop, c.lease)
      elseif c.deep > hit then text = text .. ' ' .. digits(c.deep) end
      terms[i] = text
    else
      terms[i] = rank .. ' 0 0 0 0 0 0 ' .. (c and c.state == 'drain' and 'drain' or 'down')
    end
  end
  return concat(terms, ';')
end
