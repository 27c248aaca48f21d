--[[ page, ranks, explain: look into the pool.

KEYS[1]  load       HASH    rank rows
page ARGV       1 prefix hash, or its first digits is not enough: 32 hex digits
ranks ARGV      none
explain ARGV    1 request id

Returns  page: a line a rank that holds the block; ranks: a line a rank
         explain: lines of what is known of the request, then a line a candidate
Errors   MISSING    no such request (its record is kept for a while after its end)

Holds    They write nothing.
]]
local function sorted_ranks()
  local ranks = call('HKEYS', P .. 'load')
  table.sort(ranks, function(x, y) return tonumber(x) < tonumber(y) end)
  return ranks
end

local function page(a)
  local out = {}
  for _, rank in ipairs(sorted_ranks()) do
    local v = call('HGET', rank_key(rank, 'pages'), a[1])
    if v and a[1] ~= '_' then
      local block, gen, deep, parent = match(v, '^(%d+):(%d+):(%d+):(.+)$')
      out[#out + 1] = 'rank=' .. rank .. ' block=' .. block .. ' gen=' .. gen .. ' depth=' .. deep ..
        ' parent=' .. parent .. ' ready'
    end
  end
  return out
end

local STATS = {'requests', 'prompt_tokens', 'cached_tokens', 'output_tokens'}
local function ranks(a)
  local out = {}
  for _, rank in ipairs(sorted_ranks()) do
    local c = parse_row(call('HGET', P .. 'load', rank))
    local stats = call('HMGET', rank_key(rank, 'stats'), unpack(STATS))
    local info = call('HMGET', rank_key(rank, 'info'), 'blocks', 'device', 'host', 'pid')
    local alive = call('GET', rank_key(rank, 'alive')) == c.epoch
    local state = c.state
    if state ~= 'down' and not alive then state = 'lost' end
    out[#out + 1] = fmt('rank=%s state=%s blocks=%s free=%d reclaimable=%d reserved=%d pages=%d ' ..
      'sequences=%d wait_tokens=%d run_tokens=%d reserved_tokens=%d version=%s epoch=%s requests=%s ' ..
      'prompt_tokens=%s cached_tokens=%s output_tokens=%s device=%s host=%s pid=%s', rank, state,
      info[1] or '0', c.free, c.reclaim, c.resv, max(0, call('HLEN', rank_key(rank, 'pages')) - 1),
      c.run, c.wait_tok, c.run_tok, c.resv_tok, c.ver, c.epoch, stats[1] or '0', stats[2] or '0',
      stats[3] or '0', stats[4] or '0', info[2] or '-', info[3] or '-', info[4] or '-')
  end
  return out
end

local TERMS = '^(%d+) (%d+) (%-?%d+) (%-?%d+) (%d+) (%d+) (%-?%d+) (%a+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$'
local function explain(a)
  local flat = call('HGETALL', P .. 'req:' .. a[1])
  if #flat == 0 then
    return err('MISSING', 'no request ' .. a[1] .. '; records are kept for a while after the end')
  end
  local f, out, names = {}, {'id=' .. a[1]}, {}
  for i = 1, #flat, 2 do
    f[flat[i]] = flat[i + 1]
    names[#names + 1] = flat[i]
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if name ~= 'terms' then out[#out + 1] = name .. '=' .. f[name] end
  end
  for line in gmatch(f.terms or '', '[^;]+') do
    local rank, hit, need, free, kept, queue, cost, verdict, deep, reclaim, hop, lease = match(line, TERMS)
    reclaim, hop, lease = tonumber(reclaim) or 0, tonumber(hop) or 0, tonumber(lease) or 0
    out[#out + 1] = fmt('candidate=%s hit=%s deep=%s need=%s free=%s reclaimable=%s queue=%s prefill=%d ' ..
      'reclaim=%d hop=%d lease=%d cost=%s verdict=%s', rank, hit, deep ~= '' and deep or hit, need, free, kept,
      queue, cost - queue - reclaim - hop + lease, reclaim, hop, lease, cost, verdict)
  end
  return out
end

on('page', page, {'no-writes'})
on('ranks', ranks, {'no-writes'})
on('explain', explain, {'no-writes'})
