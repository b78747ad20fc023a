"""Kafka's protocol: APIs and versions, codecs for requests, responses and stored records.

| module | contents |
|---|---|
| ``apis`` | API keys, versions, and the APIs that brokers and controllers serve |
| ``messages``, ``private`` | message classes and their layouts; generated, and riverrun's own |
| ``layout``, ``compiler``, ``codec`` | layouts, compiled into readers and writers, and cached |
| ``primitives``, ``headers`` | variable-size types; request and response headers |
| ``produce``, ``fetch``, ``fetch_client`` | hand-written codecs of the hot path |
| ``stored`` | records that Kafka stores by schema |
"""
