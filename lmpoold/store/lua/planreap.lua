--[[ plan_reap, plans, chain: the deadline of every phase, a look at live plans and at what one may move.

KEYS[1]  load       HASH    rank rows
plan_reap ARGV   1 fencing token, 2 most plans to look at
plans ARGV       1 most plans to print
chain ARGV       1 rank, 2 hash of a block, 3 most blocks

Returns  plan_reap: texts `<plan> <what was done>`
         plans: a line a live plan, the one with the nearest deadline first
         chain: the hashes from the first block to that one, 32 digits each; empty if it is longer or torn
Errors   NOCFG      no lmpoold has described the pool yet
         FENCED     another lmpoold leads by now

Holds    A plan whose side is gone or whose phase is over its time goes on or ends here.
         A rank that is alive and silent for plan_fence_ms is fenced: its epoch ends.
]]
-- One live plan: settle it if its time is over or a side is gone. Returns what was done, or nil.
local function reap_plan(g, p, now, late, most)
  local gone = not takes_part(p, 'src') and 'source_lost' or not takes_part(p, 'dst') and 'destination_lost'
  if p.phase == 'prepare' or p.phase == 'execute' then
    if not gone and not late then return nil end
    abort_plan(g, p, gone or 'late_' .. p.phase)
    return 'aborted'
  end
  local word = p.phase == 'abort' and 'stopped' or 'cleared'
  if both(p, word) then
    if p.phase == 'abort' then aborted(g, p) else settle(g, p, 'finalize') end
    return 'settled'
  end
  if not late then return nil end
  local since = tonumber(call('HGET', p.key, p.phase == 'abort' and 'at_abort' or 'at_publish') or p.at)
  local fence = now - floor(since / 1000) > g.plan_fence_ms
  for _, side in ipairs{'src', 'dst'} do
    local c = parse_row(call('HGET', P .. 'load', p[side]))
    if p[side .. '_said'] ~= word and takes_part(p, side) then
      if fence then take_down(p[side], c, most)
      else order(p, side, p.phase == 'abort' and 'abort' or 'finalize', 'limit_ms', g.plan_settle_ms) end
    end
  end
  call('ZADD', P .. 'plans', fmt('%.0f', now + g.plan_settle_ms), p.id)
  return fence and 'fenced a silent side' or 'asked again'
end

local function plan_reap(a)
  local now = now_ms()
  local g, problem = read_cfg(now)
  if not g then return problem end
  problem = fenced(a[1])
  if problem then return problem end
  local out, most = {}, tonumber(a[2])
  local flat = call('ZRANGE', P .. 'plans', 0, most - 1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    local p = read_plan(flat[i])
    local deed = 'unknown'
    if p then deed = reap_plan(g, p, now, tonumber(flat[i + 1]) < now, most) else call('ZREM', P .. 'plans', flat[i]) end
    if deed then out[#out + 1] = flat[i] .. ' ' .. deed end
  end
  return out
end

local function plans(a)
  local out, now = {}, now_us()
  local flat = call('ZRANGE', P .. 'plans', 0, a[1] - 1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    local p = read_plan(flat[i])
    if p then
      out[#out + 1] = fmt('id=%s phase=%s mode=%s why=%s source=%s destination=%s blocks=%d age_ms=%.0f ' ..
        'left_ms=%.0f reason=%s', p.id, p.phase, p.mode, p.why, p.src, p.dst, p.count - p.first,
        (now - p.began) / 1000, flat[i + 1] - now / 1000, call('HGET', p.key, 'reason') or '-')
    end
  end
  return out
end

local function chain(a)
  local key, name, out, most = rank_key(a[1], 'pages'), a[2], {}, tonumber(a[3])
  while true do
    local deep, parent = match(call('HGET', key, name) or '', '^%d+:%d+:(%d+):(%x+)$')
    if not deep or #out >= most then return '' end
    table.insert(out, 1, name)
    if deep == '0' then return concat(out) end
    name = parent
  end
end

on('plan_reap', plan_reap)
on('plans', plans, {'no-writes'})
on('chain', chain, {'no-writes'})
