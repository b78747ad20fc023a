// Transactions of KafkaJS: node kafkajs_transactions.mjs BOOTSTRAP TOPIC; prints what it saw as JSON.
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const [bootstrap, topic] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING })
const seen = {}
const groupId = `${topic}-group`

const admin = kafka.admin()
await admin.connect()
await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })

const settings = { transactionalId: topic, idempotent: true, maxInFlightRequests: 1, retry: { retries: 8 } }
const producer = kafka.producer(settings)
await producer.connect()

async function write (transaction, value) {
  await transaction.send({ topic, acks: -1, messages: [0, 1].map((partition) => ({ value, partition })) })
}

async function offset () {
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  return partitions.find((row) => row.partition === 0).offset
}

// The markers follow the response to the commit.
async function ended () {
  while (await offset() === '-1') await new Promise((resolve) => setTimeout(resolve, 50))
  return offset()
}

const offsets = (value) => ({ consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset: value }] }] })

const committed = await producer.transaction()
await write(committed, 'committed')
await committed.sendOffsets(offsets('1'))
await committed.commit()
seen.committed = await ended()

const aborted = await producer.transaction()
await write(aborted, 'aborted')
await aborted.sendOffsets(offsets('2'))
await aborted.abort()
seen.aborted = await offset()

const fenced = await producer.transaction()
await write(fenced, 'fenced')
const successor = kafka.producer(settings)
await successor.connect()
const last = await successor.transaction()
await write(last, 'last')
try {
  await fenced.commit()
  seen.fenced = 'committed'
} catch (error) {
  seen.fenced = error.type ?? error.name
}
await last.commit()

const consumer = kafka.consumer({ groupId: `${groupId}-reader`, readUncommitted: false, maxWaitTimeInMs: 200 })
await consumer.connect()
await consumer.subscribe({ topic, fromBeginning: true })
const found = []
await new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error(`only ${found.length} records`)), 30000).unref()
  consumer.run({
    eachMessage: async ({ partition, message }) => {
      found.push(`${partition} ${message.value}`)
      if (found.filter((row) => row.endsWith(' last')).length === 2) resolve()
    },
  }).catch(reject)
})
seen.read = found.sort()
await Promise.all([consumer, producer, successor, admin].map((each) => each.disconnect()))
console.log(JSON.stringify(seen))
process.exit(0)
