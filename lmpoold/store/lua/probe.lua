--[[ plan_probe: a plan that moves scratch blocks, to measure or make a link; it shows nothing to anybody.

KEYS[1]  load       HASH    rank rows
plan_probe ARGV  1 plan id, 2 source, 3 destination, 4 blocks,
                 5 `idle` or `serving`: what both ranks must be doing, or `any`

Returns  the plan's phase, or `refused` and why: `down`, `plans` (others are under way there), `serving`,
         `idle`, `no_room`
Errors   NOCFG      no lmpoold has described the pool yet
         BADARGS    the number of blocks is none

Holds    It gives way: no plan begins beside another one, nor on a rank that does the other thing.
         Scratch is taken from free blocks, half of them at most: nothing cached is forgotten for it.
         Deadlines, deaths and aborts are those of every plan; its figures go to `plans:probed`.
]]
local function can_probe(rank, blocks, wanted)
  local c = parse_row(call('HGET', P .. 'load', rank))
  if not c or c.state == 'down' or call('GET', rank_key(rank, 'alive')) ~= c.epoch then return nil, 'down' end
  if call('SCARD', rank_key(rank, 'plans')) > 0 then return nil, 'plans' end
  local serves = c.run > 0 or c.wait_tok > 0 or c.resv > 0
  if wanted == 'idle' and serves then return nil, 'serving' end
  if wanted == 'serving' and c.run == 0 then return nil, 'idle' end
  if c.free - c.resv < 2 * blocks then return nil, 'no_room' end
  return c
end

local function plan_probe(a)
  local g, problem = read_cfg(now_ms())
  if not g then return problem end
  local blocks = tonumber(match(a[4], '^%d+$') or '0')
  if blocks < 1 then return err('BADARGS', 'cannot probe with ' .. a[4] .. ' blocks') end
  local phase = call('HGET', P .. 'plan:' .. a[1], 'phase')
  if phase then return phase end
  if a[2] == a[3] then return 'refused down' end
  local s, why = can_probe(a[2], blocks, a[5])
  if not s then return 'refused ' .. why end
  local d
  d, why = can_probe(a[3], blocks, a[5])
  if not d then return 'refused ' .. why end
  open_plan(g, {id = a[1], mode = 'copy', why = 'calibrate', src = a[2], dst = a[3], src_epoch = s.epoch,
    dst_epoch = d.epoch, hashes = '', count = blocks, first = 0, cost_us = 0})
  return 'prepare'
end

on('plan_probe', plan_probe)
