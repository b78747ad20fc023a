// @platformatic/kafka against a server: node platformatic.mjs BOOTSTRAP TOPIC [LOGIN]; prints what it saw as JSON.
// LOGIN is JSON with ca, user and password, for a server with TLS and SCRAM.
import { readFileSync } from 'node:fs'
import { Admin, Consumer, Producer, ProduceAcks, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [bootstrap, topic, login] = process.argv.slice(2)
const { ca, user, password } = JSON.parse(login ?? '{}')
const secure = ca ? { tls: { ca: readFileSync(ca, 'utf8') }, sasl: { mechanism: 'SCRAM-SHA-512', username: user, password } } : {}
const common = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], retries: 5, retryDelay: 100, ...secure }
const seen = {}

const admin = new Admin(common)
const created = await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 })
seen.created = created.map((row) => row.name)
seen.listed = (await admin.listTopics()).includes(topic)

const producer = new Producer({ ...common, idempotent: true, serializers: stringSerializers })
const messages = Array.from({ length: 60 }, (_, number) => ({
  topic,
  key: `key-${number}`,
  value: `value-${number}`,
  headers: { number: String(number) },
  partition: number % 2,
}))
await producer.send({ messages: messages.slice(0, 20), acks: ProduceAcks.ALL })
for (const [at, compression] of ['gzip', 'snappy', 'lz4', 'none'].entries()) {
  const part = messages.slice(20 + at * 10, 30 + at * 10)
  await producer.send({ messages: part, acks: ProduceAcks.ALL, compression })
}
await producer.close()

async function consume (count) {
  const consumer = new Consumer({ ...common, groupId: `${topic}-group`, deserializers: stringDeserializers, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, sessionTimeout: 10000, heartbeatInterval: 500 })
  const found = []
  for await (const message of stream) {
    found.push({ key: message.key, value: message.value, number: message.headers.get('number'), partition: message.partition })
    await message.commit()
    if (found.length === count) break
  }
  await consumer.close(true)
  return found
}
const found = await consume(60)
seen.count = new Set(found.map((row) => row.number)).size
seen.equal = found.every((row) => {
  const was = messages[Number(row.number)]
  return row.key === was.key && row.value === was.value && row.partition === was.partition
})
const again = new Producer({ ...common, serializers: stringSerializers })
await again.send({ messages: [{ topic, value: 'later', partition: 1, headers: { number: '0' } }] })
await again.close()
seen.resumed = (await consume(1)).map((row) => row.value)
const groups = await admin.listGroups()
seen.group = groups.has(`${topic}-group`)
const described = await admin.describeGroups({ groups: [`${topic}-group`] })
seen.state = described.get(`${topic}-group`).state
await admin.deleteGroups({ groups: [`${topic}-group`] })
await admin.deleteTopics({ topics: [topic] })
await admin.close()
console.log(JSON.stringify(seen))
process.exit(0)
