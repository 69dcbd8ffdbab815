-- Makes a node the region's agent, or keeps it so. The lock only saves work: every
-- write of an agent is a compare-and-set.
--
-- KEYS  the lock
-- ARGV  1 the node, 2 how long it holds, ms; 0 lets go
-- Reply 1 when the node is the agent

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
