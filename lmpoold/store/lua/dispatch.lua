--[[ dispatch: the second half of `route`: gates, parking, reservation, the worker's entry.

KEYS[1]  load       HASH    rank rows; arguments, reply and errors are told in route.lua

Holds    Everything a request holds after this call has a deadline: its reservation (resv_ttl_ms),
         its place in `parked` (its own deadline). Its `req` hash lives as long as it waits or runs:
         whoever ends it (emit, finish, cancel, reap) sets the hash's TTL.
]]
local BATCH = 64
local META = '^(%d+) (%d+) (%d+) (%d+) ?(%-?%d*)$'

local function park(g, r, deadline, terms)  -- `deadline` as text
  if r.source == 'parked' then return r.id .. ' parked' end
  if call('ZCARD', P .. 'parked') >= g.max_parked then
    refuse(g, r.id, r.client, 'overloaded', 'every rank is full and ' .. g.max_parked ..
      ' requests already wait; send it again later', 'failed')
    return r.id .. ' refused overloaded'
  end
  line_up(r.id, r.priority, deadline)
  call('HSET', P .. 'parked:req', r.id .. ':p', r.payload, r.id .. ':t', r.tokens, r.id .. ':a', r.attempt)
  call('HSET', P .. 'req:' .. r.id, 'state', 'parked', 'client', r.client, 'deadline',
    deadline, 'attempt', r.attempt, 'reason', 'no_capacity', 'terms', terms)
  return r.id .. ' parked'
end

local function route_one(g, cache, r)
  local key = P .. 'req:' .. r.id
  local cur = call('HMGET', key, 'state', 'cancel', 'deadline')
  if not claim(r, cur[1]) then return r.id .. ' dup' end
  local deadline = r.deadline > 0 and r.deadline or tonumber(cur[3] or '') or r.now + g.default_deadline_ms
  if cur[2] then
    unpark(r.id)
    refuse(g, r.id, r.client, 'cancelled', 'cancelled before it was routed', 'cancelled')
    return r.id .. ' refused cancelled'
  end
  if deadline <= r.now then
    unpark(r.id)
    refuse(g, r.id, r.client, 'deadline_exceeded', 'its deadline passed before it was routed', 'failed')
    return r.id .. ' refused deadline_exceeded'
  end
  if r.source ~= 'parked' and not enter(g, r.client, r.id) then
    refuse(g, r.id, r.client, 'overloaded', 'its client has ' .. g.max_client_requests ..
      ' requests open, as many as it may; send it again when one has ended', 'failed')
    return r.id .. ' refused overloaded'
  end
  local n = #r.hashes / DIGITS
  local ranks = within(g, cache.rows, r, r.ranks)
  local lease, name = lease_on(r.hashes, n, r.now)
  local c, reason, terms, deepest = choose(g, cache.rows, r, ranks, n, lease)
  if deadline ~= cache.deadline then  -- most have the pool's default: one for the whole batch
    cache.deadline, cache.ends, cache.reaped = deadline, fmt('%d', deadline), fmt('%d', deadline + g.late_grace_ms)
  end
  local ends_at = cache.ends
  if not c then return park(g, r, ends_at, terms) end
  if r.source == 'parked' then unpark(r.id) end
  local rank, hit, id, attempt = c.rank, c.hi, r.id, r.attempt
  local hits = digits(hit)
  if c.lease > 0 then use_lease(lease, name, rank) end
  if c.fly < n then take_off(r.hashes, n, hit, rank, max(r.now, c.born)) end
  promise(g, cache, r, c, n)
  if hit > 0 and g.background ~= 0 then heat(r, hit) end
  local plan = deepest > hit and fetch(g, cache.rows, ranks, r, n, rank, hit)
  local stream, entry = P .. 'w:' .. rank, nil
  if plan then
    entry = call('XADD', stream, '*', 'kind', 'route', 'id', id, 'attempt', attempt, 'hit', hits, 'p', r.payload,
      'tokens', r.tokens, 'plan', plan, 'wait_ms', g.fetch_wait_ms)
  else
    entry = call('XADD', stream, '*', 'kind', 'route', 'id', id, 'attempt', attempt, 'hit', hits, 'p', r.payload,
      'tokens', r.tokens)
  end
  call('HSET', key, 'state', 'routed', 'rank', rank, 'attempt', attempt, 'client', r.client,
    'deadline', ends_at, 'entry', entry, 'reason', reason, 'terms', terms)
  local due = cache.due
  due[#due + 1] = cache.reaped
  due[#due + 1] = id
  return id .. ' ' .. rank .. ' ' .. hits .. ' ' .. digits(c.need)
end

local function route(a)
  local now = now_ms()
  local g, problem = read_cfg(now)
  if not g then return problem end
  if #a == 0 or #a % 8 ~= 0 or #a > 8 * BATCH then
    return err('BADARGS', 'route takes 8 arguments a request, 1 to ' .. BATCH .. ' requests')
  end
  local cache = {rows = {}, due = {}, resv_ends = fmt('%d:', now + g.resv_ttl_ms)}
  local todo, sources, out = {}, {}, {}
  for i = 1, #a, 8 do
    local ntok, nmax, deadline, attempt, priority = match(a[i + 2], META)
    local cands, origin = a[i + 4], nil
    if find(cands, '@', 1, true) then cands, origin = match(cands, '^(.*)@(%d+)$') end
    if not ntok or not cands or #a[i + 3] % DIGITS ~= 0 then
      return err('BADARGS', 'cannot read meta, hashes or candidates of ' .. a[i])
    end
    if a[i + 1] ~= 'parked' then sources[#sources + 1] = a[i + 1] end
    ntok = ntok + 0
    todo[#todo + 1] = {id = a[i], source = a[i + 1], ntok = ntok, nmax = nmax + 0, place = #todo + 1,
      total = ceil((ntok + 1) / g.block_size), priority = priority ~= '' and tonumber(priority) or 0,
      ranks = read_ranks(cache, cands), origin = origin, deadline = deadline + 0, attempt = attempt,
      hashes = a[i + 3], client = a[i + 5], payload = a[i + 6], tokens = a[i + 7], now = now}
  end
  acknowledge(todo, sources)
  meet(g)
  ask(cache.rows, todo)
  for i = 1, #todo do out[i] = route_one(g, cache, todo[i]) end
  if #sources > 0 then call('XDEL', P .. 'in', unpack(sources)) end
  if #cache.due > 0 then call('ZADD', P .. 'due', unpack(cache.due)) end
  keep_promises(cache)
  return out
end

on('route', route)
