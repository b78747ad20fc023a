// Transactions of @platformatic/kafka: node platformatic_transactions.mjs BOOTSTRAP TOPIC; prints what it saw as JSON.
import { Admin, Consumer, FetchIsolationLevels, Producer, ProduceAcks, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [bootstrap, topic] = process.argv.slice(2)
const common = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], retries: 5, retryDelay: 100 }
const groupId = `${topic}-group`
const seen = {}

const admin = new Admin(common)
const inputs = `${topic}-inputs`
await admin.createTopics({ topics: [topic, inputs], partitions: 2, replicas: 1 })
const plain = new Producer({ ...common, serializers: stringSerializers })
await plain.send({ messages: ['first', 'second'].map((value) => ({ topic: inputs, value, partition: 0 })), acks: ProduceAcks.ALL })
await plain.close()

const settings = { ...common, idempotent: true, transactionalId: topic, serializers: stringSerializers }
const producer = new Producer(settings)

async function write (transaction, value) {
  await transaction.send({ messages: [0, 1].map((partition) => ({ topic, value, partition })), acks: ProduceAcks.ALL })
}

const consumer = new Consumer({ ...common, groupId, deserializers: stringDeserializers, maxWaitTime: 200 })
const stream = await consumer.consume({ topics: [inputs], mode: 'earliest', autocommit: false, sessionTimeout: 10000, heartbeatInterval: 500 })
const messages = []
for await (const message of stream) {
  messages.push(message)
  if (messages.length === 2) break
}

async function offset () {
  const found = await consumer.listCommittedOffsets({ topics: [{ topic: inputs, partitions: [0, 1] }] })
  return String(found.get(inputs)[0])
}

// The markers follow the response to the commit.
async function ended () {
  while (await offset() === '-1') await new Promise((resolve) => setTimeout(resolve, 50))
  return offset()
}

const committed = await producer.beginTransaction()
await write(committed, 'committed')
await committed.addConsumer(consumer)
await committed.addOffset(messages[0])
await committed.commit()
seen.committed = await ended()

const aborted = await producer.beginTransaction()
await write(aborted, 'aborted')
await aborted.addConsumer(consumer)
await aborted.addOffset(messages[1])
await aborted.abort()
seen.aborted = await offset()

// With another id: the consumer skips only the last aborted transaction of a producer in a fetch.
const others = { ...settings, transactionalId: `${topic}-other` }
const predecessor = new Producer(others)
const fenced = await predecessor.beginTransaction()
await write(fenced, 'fenced')
const successor = new Producer(others)
// Without these it sends id 0 and epoch 0, and is refused as an old instance.
const last = await successor.beginTransaction({ producerId: -1n, producerEpoch: -1 })
await write(last, 'last')
try {
  await fenced.commit()
  seen.fenced = 'committed'
} catch {
  seen.fenced = 'refused'
}
await last.commit()

const reader = new Consumer({ ...common, groupId: `${groupId}-reader`, deserializers: stringDeserializers, maxWaitTime: 200, isolationLevel: FetchIsolationLevels.READ_COMMITTED })
const rows = await reader.consume({ topics: [topic], mode: 'earliest', autocommit: false, sessionTimeout: 10000, heartbeatInterval: 500 })
const found = []
for await (const message of rows) {
  found.push(`${message.partition} ${message.value}`)
  if (found.filter((row) => row.endsWith(' last')).length === 2) break
}
seen.read = found.sort()
console.log(JSON.stringify(seen))
process.exit(0)
