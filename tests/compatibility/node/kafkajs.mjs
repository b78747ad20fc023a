// KafkaJS against a server: node kafkajs.mjs BOOTSTRAP TOPIC [LOGIN]; prints what it saw as JSON.
// LOGIN is JSON with ca, user and password, for a server with TLS and SCRAM.
import { readFileSync } from 'node:fs'
import kafkajs from 'kafkajs'

const { Kafka, CompressionTypes, logLevel } = kafkajs
const [bootstrap, topic, login] = process.argv.slice(2)
const { ca, user, password } = JSON.parse(login ?? '{}')
const secure = ca ? { ssl: { ca: [readFileSync(ca, 'utf8')] }, sasl: { mechanism: 'scram-sha-512', username: user, password } } : {}
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR, ...secure })
const seen = { errors: [] }

const admin = kafka.admin()
await admin.connect()
seen.created = await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })
seen.createdAgain = await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })
seen.partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length

const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
await producer.connect()
const records = Array.from({ length: 100 }, (_, number) => ({
  key: `key-${number}`,
  value: number % 10 === 9 ? null : `value-${number}`,
  headers: { number: String(number) },
  timestamp: String(1750000000000 + number),
  partition: number % 2,
}))
const sent = await producer.send({ topic, acks: -1, messages: records.slice(0, 50) })
seen.offsets = sent.map((row) => [row.partition, row.baseOffset]).sort()
await producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages: records.slice(50) })
await producer.disconnect()

seen.ends = (await admin.fetchTopicOffsets(topic)).map((row) => [row.partition, row.low, row.high]).sort()
seen.byTime = (await admin.fetchTopicOffsetsByTimestamp(topic, 1750000000050)).map((row) => [row.partition, row.offset]).sort()

async function consume (groupId, count) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTimeInMs: 200 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = []
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${found.length} of ${count} records`)), 30000).unref()
    consumer.run({
      autoCommitThreshold: 1,
      eachMessage: async ({ partition, message }) => {
        found.push({
          partition,
          offset: message.offset,
          key: message.key?.toString(),
          value: message.value === null ? null : message.value.toString(),
          number: message.headers.number?.toString(),
          timestamp: message.timestamp,
        })
        if (found.length === count) resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return found
}
const found = await consume(`${topic}-group`, 100)
seen.equal = found.every((row) => {
  const was = records[Number(row.number)]
  return row.key === was.key && row.value === was.value && row.timestamp === was.timestamp && row.partition === was.partition
})
seen.count = new Set(found.map((row) => row.number)).size

const again = kafka.producer()
await again.connect()
await again.send({ topic, messages: [{ value: 'later', partition: 0, headers: { number: '0' } }] })
await again.disconnect()
seen.resumed = (await consume(`${topic}-group`, 1)).map((row) => row.value)
seen.committed = (await admin.fetchOffsets({ groupId: `${topic}-group`, topics: [topic] }))[0].partitions.map((row) => row.offset).sort()
seen.described = (await admin.describeGroups([`${topic}-group`])).groups[0].state
const configs = await admin.describeConfigs({ resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }] })
seen.retention = configs.resources[0].configEntries[0].configValue
await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
seen.low = (await admin.fetchTopicOffsets(topic)).find((row) => row.partition === 0).low
await admin.deleteGroups([`${topic}-group`])
await admin.deleteTopics({ topics: [topic] })
await admin.disconnect()
console.log(JSON.stringify(seen))
