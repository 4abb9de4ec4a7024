// What clients of OpenAI's interface get from `ordermoe serve` with the bundled model; scripts/campaign-openai-clients runs it where the
// packages are.
//
//   node clients.mjs URL URL_WITH_KEYS KEY URL_OF_A_NARROW_GATEWAY
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI, OpenAI as CompletionOpenAI } from '@langchain/openai';
import { APICallError, generateText, streamText } from 'ai';
import OpenAI from 'openai';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [open, locked, key, narrow] = process.argv.slice(2);
const model = 'lineage';
const question = '75 * 5';
const answer = '5*5=25; 70*5=350; 350+25=375; answer 375';
const messages = [{ role: 'user', content: question }];
const prompt = `Q: ${question}\nA:`;
const drawn = 'In early spring';

let failed = 0;
let passed = 0;
async function check(what, run) {
  try {
    await run();
    ++passed;
  } catch (problem) {
    ++failed;
    console.log(`FAILED: ${what}: ${problem?.stack ?? problem}`);
  }
}
async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}
/** How many answers are being made. */
async function running(url) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(/^vllm:num_requests_running\{[^}]*\} (\d+)/m.exec(text)[1]);
}
async function eventually(holds, what) {
  for (let i = 0; i < 300; ++i) {
    if (await holds()) return;
    await new Promise((done) => setTimeout(done, 20));
  }
  assert.fail(what);
}

// ---------------------------------------------------------------------------------------- openai

const official = (url, more = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0, ...more });
const client = official(open);
const chat = (more) => client.chat.completions.create({ model, messages, temperature: 0, ...more });
const complete = (more) => client.completions.create({ model, prompt, temperature: 0, ...more });

await check('openai: models', async () => {
  assert.deepEqual((await client.models.list()).data.map((each) => each.id), [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

await check('openai: a chat', async () => {
  const reply = await chat({});
  assert.equal(reply.object, 'chat.completion');
  assert.equal(reply.choices.length, 1);
  assert.deepEqual(reply.choices[0].message, { role: 'assistant', content: answer, refusal: null });
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.match(reply.system_fingerprint, /^fp_/);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.ok(Math.abs(reply.created - Date.now() / 1000) < 60);
});

await check('openai: a conversation, with parts of content', async () => {
  const reply = await chat({
    messages: [
      { role: 'system', content: 'be brief' },
      { role: 'user', content: [{ type: 'text', text: question }] },
      { role: 'assistant', content: 'answer 375' },
      { role: 'user', content: '22 * 3', name: 'eve' },
    ],
  });
  assert.match(reply.choices[0].message.content, /answer 66$/);
});

await check('openai: a stream, its usage, and the helper that puts it together', async () => {
  const chunks = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(chunks.map((each) => each.choices[0]?.delta.content ?? '').join(''), answer);
  assert.equal(chunks.at(-2).choices[0].finish_reason, 'stop');
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(new Set(chunks.map((each) => each.id)).size, 1);
  const whole = await chat({});
  const { ordermoe: first, ...streamed } = chunks.at(-1).usage;
  const { ordermoe: second, ...told } = whole.usage;
  assert.deepEqual(streamed, told);
  assert.equal(first.reproducible, second.reproducible);
  const helper = client.chat.completions.stream({ model, messages, temperature: 0, stream_options: { include_usage: true } });
  assert.equal(await helper.finalContent(), answer);
  assert.deepEqual(await helper.totalUsage(), told);
  assert.equal((await helper.finalChatCompletion()).choices[0].finish_reason, 'stop');
});

await check('openai: stop, and a limit', async () => {
  const stopped = (await chat({ stop: ['=', 'never'] })).choices[0];
  assert.deepEqual([stopped.message.content, stopped.finish_reason], ['5*5', 'stop']);
  assert.equal((await all(await chat({ stop: '=', stream: true }))).map((each) => each.choices[0].delta.content ?? '').join(''), '5*5');
  for (const limit of [{ max_tokens: 4 }, { max_completion_tokens: 4 }]) {
    const reply = await chat(limit);
    assert.equal(reply.choices[0].finish_reason, 'length');
    assert.equal(reply.usage.completion_tokens, 4);
  }
});

await check('openai: seeds, and several answers', async () => {
  const draw = (more) => complete({ prompt: drawn, temperature: 1, max_tokens: 24, ...more });
  const first = await draw({ seed: 5, n: 3 });
  assert.deepEqual(first.choices.map((each) => each.index), [0, 1, 2]);
  assert.equal(new Set(first.choices.map((each) => each.text)).size, 3);
  assert.deepEqual((await draw({ seed: 5, n: 3 })).choices, first.choices);
  assert.equal((await draw({ seed: 5 })).choices[0].text, first.choices[0].text);
  assert.notEqual((await draw({ seed: 6 })).choices[0].text, first.choices[0].text);
  const texts = ['', '', ''];
  for (const chunk of await all(await draw({ seed: 5, n: 3, stream: true })))
    for (const each of chunk.choices) texts[each.index] += each.text;
  assert.deepEqual(texts, first.choices.map((each) => each.text));
});

await check('openai: logprobs of a chat, whole and streamed', async () => {
  const whole = (await chat({ logprobs: true, top_logprobs: 2, max_tokens: 6 })).choices[0].logprobs.content;
  assert.equal(whole.length, 6);
  for (const each of whole) {
    assert.ok(each.logprob <= 0);
    assert.equal(each.top_logprobs.length, 2);
    assert.equal(Buffer.from(each.bytes).toString(), each.token);
    assert.equal(each.top_logprobs[0].token, each.token);
  }
  const helper = client.chat.completions.stream({ model, messages, temperature: 0, logprobs: true, top_logprobs: 2, max_tokens: 6 });
  assert.deepEqual((await helper.finalChatCompletion()).choices[0].logprobs.content, whole);
});

await check('openai: completions of several prompts, echoed, with logprobs, of ids', async () => {
  const reply = await complete({ prompt: [prompt, drawn], max_tokens: 5, echo: true });
  assert.equal(reply.object, 'text_completion');
  assert.ok(reply.choices[0].text.startsWith(prompt) && reply.choices[1].text.startsWith(drawn));
  const { logprobs, text } = (await complete({ max_tokens: 5, logprobs: 3 })).choices[0];
  assert.equal(logprobs.tokens.join(''), text);
  assert.equal(logprobs.text_offset[0], 0);
  for (const each of logprobs.top_logprobs) assert.ok(Object.keys(each).length >= 1);
  const { tokens } = await (
    await fetch(`${open}/tokenize`, { method: 'POST', body: JSON.stringify({ prompt }), headers: { 'Content-Type': 'application/json' } })
  ).json();
  assert.equal((await complete({ prompt: tokens, max_tokens: 5 })).choices[0].text, text);
});

await check('openai: what is refused has its class, parameter and code', async () => {
  const refused = async (asked, kind, status, param, code) => {
    const problem = await asked().then(() => assert.fail('was answered'), (thrown) => thrown);
    assert.ok(problem instanceof kind, `${problem}`);
    assert.deepEqual([problem.status, problem.param, problem.code], [status, param, code], `${problem}`);
    assert.ok(problem.message.length > 10);
  };
  const bad = OpenAI.BadRequestError;
  await refused(() => chat({ temperature: 3 }), bad, 400, 'temperature', 'invalid_value');
  await refused(() => chat({ temperature: 3, stream: true }), bad, 400, 'temperature', 'invalid_value');
  await refused(() => chat({ n: 16384 }), bad, 400, 'n', 'invalid_value');
  await refused(() => chat({ max_tokens: -1 }), bad, 400, 'max_tokens', 'invalid_value');
  await refused(() => chat({ messages: [] }), bad, 400, 'messages', 'invalid_type');
  await refused(() => chat({ unheard_of: 1 }), bad, 400, 'unheard_of', 'unknown_parameter');
  await refused(() => chat({ messages: [{ role: 'user', content: 'a '.repeat(5000) }] }), bad, 400, 'messages', 'context_length_exceeded');
  const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }];
  await refused(() => chat({ tools }), bad, 400, 'tools', 'unsupported_parameter');
  await refused(() => chat({ response_format: { type: 'json_object' } }), bad, 400, 'response_format', 'unsupported_parameter');
  await refused(() => complete({ suffix: 'x' }), bad, 400, 'suffix', 'unsupported_parameter');
  await refused(() => chat({ model: 'gpt-4' }), OpenAI.NotFoundError, 404, 'model', 'model_not_found');
  await refused(() => client.models.retrieve('gpt-4'), OpenAI.NotFoundError, 404, 'model', 'model_not_found');
  await refused(() => client.embeddings.create({ model, input: 'x' }), OpenAI.NotFoundError, 404, null, null);
  await refused(() => client.responses.create({ model, input: 'x' }), OpenAI.NotFoundError, 404, null, null);
});

await check('openai: whoever leaves a stream is not answered any longer', async () => {
  const stream = await complete({ prompt: drawn, max_tokens: 500, ignore_eos: true, stream: true, n: 8 });
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    break; // Which closes the connection.
  }
  await eventually(async () => (await running(open)) === 0, 'still answered');
});

await check('openai: keys', async () => {
  const asked = (apiKey) => official(locked, { apiKey }).chat.completions.create({ model, messages, temperature: 0 });
  assert.equal((await asked(key)).choices[0].message.content, answer);
  const problem = await asked('another-key-of-others').then(() => assert.fail('was answered'), (thrown) => thrown);
  assert.ok(problem instanceof OpenAI.AuthenticationError, `${problem}`);
  assert.deepEqual([problem.status, problem.code], [401, 'invalid_api_key']);
});

await check('openai: a full gateway says when to come again, which the client does by itself', async () => {
  const long = { model, prompt: drawn, max_tokens: 400, ignore_eos: true, stream: true };
  const stream = await official(narrow).completions.create(long);
  const problem = await official(narrow)
    .completions.create({ model, prompt, max_tokens: 1 })
    .then(() => assert.fail('was answered'), (thrown) => thrown);
  assert.ok(problem instanceof OpenAI.RateLimitError, `${problem}`);
  assert.ok(Number(problem.headers.get('retry-after')) >= 1);
  const later = official(narrow, { maxRetries: 5 }).completions.create({ model, prompt, max_tokens: 1 });
  stream.controller.abort();
  assert.equal((await later).choices.length, 1);
});

// ------------------------------------------------------------------------------------- langchain

const langchain = (more = {}) =>
  new ChatOpenAI({ model, apiKey: 'any', temperature: 0, maxRetries: 0, configuration: { baseURL: `${open}/v1` }, ...more });

await check('langchain: a chat and its usage', async () => {
  const reply = await langchain().invoke(question);
  assert.equal(reply.content, answer);
  assert.equal(reply.response_metadata.finish_reason, 'stop');
  assert.ok(reply.usage_metadata.output_tokens > 10);
  const more = await langchain().invoke([['system', 'be brief'], ['human', question], ['ai', 'answer 375'], ['human', '22 * 3']]);
  assert.match(more.content, /answer 66$/);
});

await check('langchain: streams, batches, several answers', async () => {
  const chunks = await all(await langchain({ streamUsage: true }).stream(question));
  assert.equal(chunks.map((each) => each.content).join(''), answer);
  assert.ok(chunks.some((each) => each.usage_metadata?.output_tokens > 10));
  const replies = await langchain().batch([question, '22 * 3']);
  assert.equal(replies[0].content, answer);
  assert.match(replies[1].content, /answer 66$/);
  const several = await langchain({ n: 2 }).generate([messages]);
  assert.deepEqual(several.generations[0].map((each) => each.text), [answer, answer]);
});

await check('langchain: stop, seed, logprobs, a limit', async () => {
  assert.equal((await langchain().invoke(question, { stop: ['='] })).content, '5*5');
  const draw = async (seed) => (await langchain({ temperature: 1 }).invoke(drawn, { seed })).content;
  assert.equal(await draw(3), await draw(3));
  const short = (await langchain({ logprobs: true, topLogprobs: 2, maxTokens: 4 }).invoke(question)).response_metadata;
  assert.equal(short.finish_reason, 'length');
  assert.equal(short.logprobs.content.length, 4);
});

await check('langchain: completions, whole and streamed', async () => {
  const made = () => new CompletionOpenAI({ model, apiKey: 'any', temperature: 0, maxTokens: 24, maxRetries: 0, configuration: { baseURL: `${open}/v1` } });
  const whole = await made().invoke(prompt);
  assert.ok(whole.startsWith(' 5*5=25;'), whole);
  assert.equal((await all(await made().stream(prompt))).join(''), whole);
});

await check('langchain: what is refused', async () => {
  await assert.rejects(langchain({ temperature: 3 }).invoke(question), { status: 400, param: 'temperature' });
  await assert.rejects(langchain().bindTools([{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }]).invoke(question), {
    status: 400,
    param: 'tools',
  });
});

// --------------------------------------------------------------------------------------------- ai

const provider = createOpenAICompatible({ name: 'ordermoe', baseURL: `${open}/v1`, includeUsage: true });
const ask = (more = {}) => generateText({ model: provider(model), prompt: question, temperature: 0, maxRetries: 0, ...more });

await check('ai: a chat and its usage', async () => {
  const reply = await ask();
  assert.equal(reply.text, answer);
  assert.equal(reply.finishReason, 'stop');
  assert.ok(reply.usage.outputTokens > 10);
  const more = await ask({ prompt: undefined, system: 'be brief', messages: [...messages, { role: 'assistant', content: 'answer 375' }, { role: 'user', content: '22 * 3' }] });
  assert.match(more.text, /answer 66$/);
});

await check('ai: a stream and its usage', async () => {
  const reply = streamText({ model: provider(model), prompt: question, temperature: 0, maxRetries: 0 });
  assert.equal((await all(reply.textStream)).join(''), answer);
  assert.equal(await reply.finishReason, 'stop');
  assert.deepEqual((await reply.usage).totalTokens, (await ask()).usage.totalTokens);
});

await check('ai: stop, limit, penalties and our own members', async () => {
  const stopped = await ask({ stopSequences: ['='], topP: 0.5, presencePenalty: 0.1, frequencyPenalty: 0.1 });
  assert.deepEqual([stopped.text, stopped.finishReason], ['5*5', 'stop']);
  assert.equal((await ask({ maxOutputTokens: 4 })).finishReason, 'length');
  const draw = async (seed) => (await ask({ prompt: drawn, temperature: 1, seed })).text;
  assert.equal(await draw(3), await draw(3));
  assert.equal((await ask({ providerOptions: { ordermoe: { user: 'eve', ordermoe: { quality_budget_percent: 0 } } } })).text, answer);
});

await check('ai: completions, whole and streamed', async () => {
  const asked = { model: provider.completionModel(model), prompt: question, temperature: 0, maxRetries: 0, maxOutputTokens: 12 };
  const whole = await generateText(asked);
  assert.ok(whole.text.length > 0);
  assert.equal((await all(streamText(asked).textStream)).join(''), whole.text);
});

await check('ai: what is refused', async () => {
  const refused = async (more, status, param) => {
    const problem = await ask(more).then(() => assert.fail('was answered'), (thrown) => thrown);
    assert.ok(APICallError.isInstance(problem), `${problem}`);
    assert.equal(problem.statusCode, status);
    assert.equal(JSON.parse(problem.responseBody).error.param, param);
  };
  await refused({ temperature: 3 }, 400, 'temperature');
  await refused({ model: provider('gpt-4') }, 404, 'model');
  const image = { type: 'image', image: new Uint8Array([1, 2]), mediaType: 'image/png' };
  await refused({ prompt: undefined, messages: [{ role: 'user', content: [image] }] }, 400, 'messages[0].content[0].type');
});

console.log(`${passed} of ${passed + failed} checks passed`);
process.exit(failed ? 1 : 0);
