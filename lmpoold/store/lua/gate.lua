--[[ gate: which requests of a `route` call are this call's to serve.

KEYS[1]  load       HASH    rank rows

Holds    Of all calls that name an ingress entry, one serves it: the one whose XACK found it pending.
         A parked request is served while it is in `parked`, which its dispatch takes it out of.
]]
local WAITING = {queued = true, tombstone = true}

-- Acknowledge the batch's ingress entries in one call. Only when some were not pending any more is it
-- found out which: their requests have a state, or are gone from the stream with their record.
local function acknowledge(todo, sources)
  if #sources == 0 then return end
  local lost = #sources - call('XACK', P .. 'in', 'sched', unpack(sources))
  if lost == 0 then return end
  local silent = {}
  for i = 1, #todo do
    local r = todo[i]
    if r.source ~= 'parked' and #call('XRANGE', P .. 'in', r.source, r.source) == 0 then
      local state = call('HGET', P .. 'req:' .. r.id, 'state')
      if state and not WAITING[state] then lost = lost - 1 else silent[#silent + 1] = r end
    end
  end
  if lost > 0 then for i = 1, #silent do silent[i].taken = true end end
end

-- Whether this call may serve the request; a parked one stays until it is dispatched or refused.
local function claim(r, state)
  if r.source == 'parked' then return call('ZSCORE', P .. 'parked', r.id) ~= false end
  return not r.taken and (not state or WAITING[state] == true)
end
