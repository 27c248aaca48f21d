--[[ base: what every function of the library shares. Assembled first; registers nothing.

KEYS[1]  of every function is `<prefix>load`, HASH rank -> "state free reclaim resv resv_tok
         wait_tok run_tok run ver epoch". All other keys are `<prefix>...` under the same hash tag.

Holds    No redis.* exists while FUNCTION LOAD runs the body, so calls bind on the first entry, in `on`.
         A function reads and validates everything before its first write: Lua has no rollback.
]]
local call, P
local fmt, sub, find, match, gmatch, concat, floor, max, min, ceil

local function on(name, body, flags)
  local function entry(keys, args)
    if not call then
      call = redis.call
      fmt, sub, find, match, gmatch = string.format, string.sub, string.find, string.match, string.gmatch
      concat, floor, max, min, ceil = table.concat, math.floor, math.max, math.min, math.ceil
    end
    P = sub(keys[1], 1, -5)
    return body(args)
  end
  redis.register_function{function_name = name, callback = entry, flags = flags}
end

local function err(word, text) return {err = word .. ' ' .. text} end

local function rank_key(rank, what) return P .. 'r:' .. rank .. ':' .. what end

local ROW = '^(%a+) (%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

-- A load row as numbers; ver and epoch stay strings (epochs exceed nothing, but are compared as written).
local function parse_row(text)
  if not text then return nil end
  local st, f, rc, rv, rt, wt, nt, rn, ve, ep = match(text, ROW)
  if not st then return nil end
  -- Adding 0 reads a number in half the time that tonumber takes.
  return {state = st, free = f + 0, reclaim = rc + 0, resv = rv + 0, resv_tok = rt + 0, wait_tok = wt + 0,
          run_tok = nt + 0, run = rn + 0, ver = ve, epoch = ep, born = ep + 0}
end

local function write_row(rank, c)
  local text = fmt('%s %d %d %d %d %d %d %d %s %s', c.state, c.free, c.reclaim,
    max(0, c.resv), max(0, c.resv_tok), c.wait_tok, c.run_tok, c.run, c.ver, c.epoch)
  call('HSET', P .. 'load', rank, text)
  return text
end

-- The row of `rank` if the caller still owns it, else nil and the error to return.
local function owned(rank, epoch)
  local c = parse_row(call('HGET', P .. 'load', rank))
  if not c then return nil, err('NORANK', 'rank ' .. rank .. ' never joined; call rank_up first') end
  if c.epoch ~= epoch or c.state == 'down' then
    return nil, err('STALE_EPOCH', 'rank ' .. rank .. ' is ' .. c.state .. ' at epoch ' .. c.epoch)
  end
  return c
end

-- The error to return unless `token` is the leader's.
local function fenced(token)
  if call('GET', P .. 'sched:fence') == token then return nil end
  return err('FENCED', 'token ' .. token .. ' is not the leader\'s; acquire again')
end

-- Chance. The clock's microseconds alone would not do: who comes a millisecond after the last one
-- always meets the same remainder. They only stir what a multiplicative generator mixes.
local dice = 0
local function roll(n)
  dice = dice * 16807 % 2147483647
  return floor(dice / 65536) % n
end

local function now_ms()
  local t = call('TIME')
  dice = (dice + t[2] + 1) % 2147483647
  return t[1] * 1000 + floor(t[2] / 1000)
end

-- Give back what a route reserved on `rank`; safe to repeat.
local function unreserve(rank, c, ticket)
  local key = rank_key(rank, 'resv')
  local v = call('HGET', key, ticket)
  if not v then return false end
  local blocks, tokens = match(v, '^(%d+):(%d+)')
  c.resv, c.resv_tok = max(0, c.resv - blocks), max(0, c.resv_tok - tokens)
  call('HDEL', key, ticket)
  return true
end

-- Park a request: `parked` is in the order of retry, by priority, then by deadline. A deadline in unix ms
-- stays below 2^42 for a long time, and a thousand times that is a whole number still.
local function line_up(id, priority, deadline)
  call('ZADD', P .. 'parked', fmt('%.0f', min(deadline, 2^42 - 1) - priority * 2^42), id)
  call('ZADD', P .. 'due', fmt('%.0f', deadline), id)
end

local function unpark(id)
  call('HDEL', P .. 'parked:req', id .. ':p', id .. ':t', id .. ':a')
  return call('ZREM', P .. 'parked', id) == 1
end
