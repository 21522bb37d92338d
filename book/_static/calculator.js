/* Calculator: what the roofline permits a model on an accelerator, worked out in the page.

   The first half repeats the library's arithmetic under the library's names, in camelCase:
   model_spec.py, roofline.py, capacity.py, crossover.py, crossover_atlas.py, transfer_cost.py.
   Their docstrings say what is counted, what is ignored, and the sources. A test holds every number
   against theirs. Shapes and data sheets stand in the page as JSON, their fields under the
   library's own names; null is what no source prints. All quantities are in SI base units.

   The second half reads the fields, fills the tables, draws the roofline and keeps the link. */
"use strict";

(() => {
  const GIGABIT = 1e9 / 8; // bytes: links are sold in Gb/s
  const ATTENTION = "attention";

  /* Counts of a model: model_spec.py. */

  const querySize = (model) => model.num_heads * model.head_dim;
  const kvSize = (model) => model.num_kv_heads * model.head_dim;
  const valueHeadDim = (model) => (model.latent ? model.latent.value_head_dim : model.head_dim);
  const attendedSize = (model) => model.num_heads * valueHeadDim(model);
  const attentionOutParams = (model) => attendedSize(model) * model.hidden_size;
  const lmHeadParams = (model) => model.vocab_size * model.hidden_size;
  const numDenseLayers = (model) => model.num_layers - model.num_expert_layers;
  const mlpParams = (model, intermediateSize) =>
    (model.gated_mlp ? 3 : 2) * model.hidden_size * intermediateSize;

  /** Values that one token leaves in a layer's cache under latent attention. */
  const cachedSize = (latent) => latent.kv_rank + latent.rope_head_dim;

  /** Latent attention's matrix from one token's latent to all heads' keys and values. */
  function kvExpansionParams(model) {
    const { kv_rank, nope_head_dim, value_head_dim } = model.latent;
    return kv_rank * model.num_heads * (nope_head_dim + value_head_dim);
  }

  function qkvParams(model) {
    const { hidden_size, latent } = model;
    if (!latent) return hidden_size * (querySize(model) + 2 * kvSize(model));
    const queries =
      latent.query_rank === null
        ? hidden_size * querySize(model)
        : latent.query_rank * (hidden_size + querySize(model));
    return queries + hidden_size * cachedSize(latent) + kvExpansionParams(model);
  }

  const expertParams = (model) => mlpParams(model, model.experts.intermediate_size);

  const routerParams = (model) =>
    model.hidden_size * (model.experts.num_experts + (model.experts.shared_gate ? 1 : 0));

  /** Matrices of all layers, with so many routed experts counted in each expert layer. */
  function blockParams(model, expertsCounted) {
    const attention = model.num_layers * (qkvParams(model) + attentionOutParams(model));
    const dense = numDenseLayers(model) * mlpParams(model, model.intermediate_size);
    if (!model.experts) return attention + dense;
    const shared = mlpParams(model, model.experts.shared_intermediate_size);
    const mixture = expertsCounted * expertParams(model) + shared + routerParams(model);
    return attention + dense + model.num_expert_layers * mixture;
  }

  /** All stored weights: layers' matrices in their own type, all else in the cache's. */
  function weightBytes(model) {
    const numExperts = model.experts ? model.experts.num_experts : 0;
    const routed = numExperts ? model.num_expert_layers * numExperts * expertParams(model) : 0;
    const blocks = blockParams(model, numExperts) - routed;
    const rest = model.total_params - blocks - routed;
    const matrices = blocks * model.bytes_per_weight + routed * model.bytes_per_expert_weight;
    return Math.trunc(matrices + rest * model.bytes_per_value);
  }

  const kvValuesPerTokenLayer = (model) =>
    model.latent ? cachedSize(model.latent) : 2 * kvSize(model);

  const kvBytesPerToken = (model) =>
    model.num_layers * kvValuesPerTokenLayer(model) * model.bytes_per_value;

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  /** Bytes that attention needs of one sequence; a window holds no more than itself. */
  function kvBytes(model, contextTokens) {
    const held = model.window_layers.map(
      ([window, layers]) =>
        layers * (window === null ? contextTokens : Math.min(contextTokens, window)),
    );
    return sum(held) * kvValuesPerTokenLayer(model) * model.bytes_per_value;
  }

  /** Experts of one layer that a step of so many tokens wakes: E (1 - (1 - k/E)^tokens). */
  function expectedDistinct(experts, tokens) {
    const share = experts.experts_per_token / experts.num_experts;
    return experts.num_experts * (1 - (1 - share) ** tokens);
  }

  /* A step: step.py and roofline.py. A chunk stands for `sequences` that are alike. */

  const chunkOf = (newTokens, cachedTokens = 0, sequences = 1) => ({
    newTokens,
    cachedTokens,
    sequences,
    samplesToken: true,
  });

  const causalPairs = (newTokens, cachedTokens) =>
    newTokens * cachedTokens + (newTokens * (newTokens + 1)) / 2;

  /** Query-key pairs of a chunk in a layer whose queries see at most `window` tokens. */
  function attendedPairs({ newTokens, cachedTokens }, window) {
    if (window === null) return causalPairs(newTokens, cachedTokens);
    const growing = Math.max(0, Math.min(newTokens, window - cachedTokens));
    return causalPairs(growing, growing ? cachedTokens : 0) + (newTokens - growing) * window;
  }

  const cachedTokensRead = ({ cachedTokens }, window) =>
    window === null ? cachedTokens : Math.min(cachedTokens, window - 1);

  const newTokensKept = ({ newTokens }, window) =>
    window === null ? newTokens : Math.min(newTokens, window);

  /** One layer's. Latent attention goes the cheaper of its two ways. */
  function chunkAttentionFlops(model, chunk, window) {
    const pairs = attendedPairs(chunk, window);
    const flops = 2 * (querySize(model) + attendedSize(model)) * pairs;
    if (!model.latent) return flops;
    const expanding = 2 * kvExpansionParams(model) * cachedTokensRead(chunk, window);
    const widths = cachedSize(model.latent) + model.latent.kv_rank;
    return Math.min(flops + expanding, 2 * model.num_heads * widths * pairs);
  }

  function attention(model, chunk) {
    const parts = model.window_layers.map(([window, layers]) => ({
      flops: layers * chunkAttentionFlops(model, chunk, window),
      tokens: layers * (cachedTokensRead(chunk, window) + newTokensKept(chunk, window)),
    }));
    const values = kvValuesPerTokenLayer(model);
    return {
      name: ATTENTION,
      flops: chunk.sequences * sum(parts.map((part) => part.flops)),
      bytes: chunk.sequences * sum(parts.map((part) => part.tokens)) * values * model.bytes_per_value,
    };
  }

  /** `rows` rows times `params` weights in each of so many layers. */
  const product = (name, layers, rows, params, bytesPerWeight) => ({
    name,
    flops: 2 * layers * rows * params,
    bytes: layers * params * bytesPerWeight,
  });

  /** Router, routed and shared experts; the bytes are those of the experts that wake. */
  function expertMlps(model, rows) {
    const { experts, num_expert_layers: layers } = model;
    if (!experts || !layers) return [];
    const routed = product(
      "experts' projections",
      layers,
      rows * experts.experts_per_token,
      expertParams(model),
      expectedDistinct(experts, rows) * model.bytes_per_expert_weight,
    );
    const shared = mlpParams(model, experts.shared_intermediate_size);
    return [
      product("router", layers, rows, routerParams(model), model.bytes_per_weight),
      routed,
      product("shared experts' projections", layers, rows, shared, model.bytes_per_weight),
    ];
  }

  /** The operations of one step over chunks that are all alike. */
  function stepOperations(model, chunk) {
    const rows = chunk.sequences * chunk.newTokens;
    const sampled = chunk.samplesToken ? chunk.sequences : 0;
    const { num_layers: layers, bytes_per_weight: bytes } = model;
    const mlp = mlpParams(model, model.intermediate_size);
    const operations = [
      product("qkv projection", layers, rows, qkvParams(model), bytes),
      attention(model, chunk),
      product("output projection", layers, rows, attentionOutParams(model), bytes),
      product("mlp projections", numDenseLayers(model), rows, mlp, bytes),
      ...expertMlps(model, rows),
    ];
    if (!sampled) return operations;
    const lmHead = product("lm_head", 1, sampled, lmHeadParams(model), model.bytes_per_value);
    return [...operations, lmHead];
  }

  const added = (works) => ({
    flops: sum(works.map((work) => work.flops)),
    bytes: sum(works.map((work) => work.bytes)),
  });

  /** FLOP and bytes of a step's two parts, which wait for each other in every layer. */
  function stepWork(model, chunk) {
    const operations = stepOperations(model, chunk);
    const weights = added(operations.filter((each) => each.name !== ATTENTION));
    const attended = added(operations.filter((each) => each.name === ATTENTION));
    return { weights, attention: attended, total: added([weights, attended]) };
  }

  const ridgeFlopsPerByte = (hardware) =>
    hardware.peak_flops_per_s / hardware.bandwidth_bytes_per_s;

  const leastTimeS = (work, hardware) =>
    Math.max(work.flops / hardware.peak_flops_per_s, work.bytes / hardware.bandwidth_bytes_per_s);

  const limitedBy = (work, hardware) =>
    work.flops / work.bytes > ridgeFlopsPerByte(hardware) ? "compute" : "bandwidth";

  const stepLeastTimeS = (work, hardware) =>
    leastTimeS(work.weights, hardware) + leastTimeS(work.attention, hardware);

  /* Memory: capacity.py. The remainder keeps the division whole, as Python's // does. */

  function sequencesThatFit(model, memoryBytes, tokens) {
    const roomBytes = Math.max(0, memoryBytes - weightBytes(model));
    const eachBytes = kvBytes(model, tokens);
    return Math.round((roomBytes - (roomBytes % eachBytes)) / eachBytes);
  }

  /* The batch: crossover.py and crossover_atlas.py. */

  const ALL_AWAKE_TOKENS = 1e6; // in a step, so that every expert has some

  /** B* against the weights that a step of so many tokens reads. */
  function crossoverAgainst(model, awakeTokens, contextTokens, hardware) {
    const one = stepWork(model, chunkOf(1, contextTokens));
    const attentionS = leastTimeS(one.attention, hardware);
    const ownS = one.weights.flops / hardware.peak_flops_per_s + attentionS;
    const readBytes = stepWork(model, chunkOf(awakeTokens)).weights.bytes;
    const readS = readBytes / hardware.bandwidth_bytes_per_s;
    return (Math.max(readS, leastTimeS(one.weights, hardware)) + attentionS) / ownS;
  }

  /** The batch from which on own costs exceed what it shares: against what it wakes itself. */
  function predictedCrossover(model, contextTokens, hardware) {
    const against = (tokens) => crossoverAgainst(model, tokens, contextTokens, hardware);
    let crossover = against(ALL_AWAKE_TOKENS);
    for (let less; (less = against(Math.ceil(crossover))) < crossover; ) crossover = less;
    return crossover;
  }

  /* Moving the cache: transfer_cost.py. */

  const movedBytes = (model, promptTokens) => promptTokens * kvBytesPerToken(model);

  /** The share of a layer's arithmetic before its keys and values may leave. */
  function readyShare(model, promptTokens) {
    const chunk = { ...chunkOf(promptTokens), samplesToken: false };
    const operations = stepOperations(model, chunk);
    const early = ["qkv projection", ATTENTION];
    return added(operations.filter((each) => early.includes(each.name))).flops /
      added(operations).flops;
  }

  /** Seconds until first token and cache are both there, each layer sent as it is ready. */
  function layeredS({ prefillS, transferS, layers, ready }) {
    const layerS = prefillS / layers;
    const firstReadyS = ready * layerS;
    const lastReadyS = prefillS - layerS + firstReadyS;
    return Math.max(prefillS, lastReadyS + transferS / layers, firstReadyS + transferS);
  }

  /** Of a prompt whose prefill takes the least time; null where that is unknown. */
  function handover(model, promptTokens, prefillS, linkBytesPerS) {
    const moved = movedBytes(model, promptTokens);
    const transferS = moved / linkBytesPerS;
    const known = { moved_bytes: moved, transfer_s: transferS };
    if (prefillS === null) return { ...UNKNOWN_HANDOVER, ...known };
    const ready = readyShare(model, promptTokens);
    const layered = layeredS({ prefillS, transferS, layers: model.num_layers, ready });
    return {
      ...known,
      share: transferS / prefillS,
      break_even_bytes_per_s: moved / prefillS,
      serial_s: prefillS + transferS,
      layered_s: layered,
      exposed_s: layered - prefillS,
    };
  }

  const UNKNOWN_HANDOVER = {
    share: null,
    break_even_bytes_per_s: null,
    serial_s: null,
    layered_s: null,
    exposed_s: null,
  };

  /* All of it for one choice. What needs a peak that no source prints is null. */

  const typedModel = (model, numbers) => ({
    ...model,
    bytes_per_value: numbers.bytes_per_value,
    bytes_per_weight: numbers.bytes_per_weight,
    bytes_per_expert_weight: numbers.bytes_per_expert_weight,
  });

  function hardwareOf(row, numbers, devices) {
    const peak = row.peaks_flops_per_s[numbers.arithmetic];
    return {
      peak_flops_per_s: peak === null ? null : devices * peak,
      bandwidth_bytes_per_s: devices * row.bandwidth_bytes_per_s,
    };
  }

  function phase(work, hardware) {
    const known = hardware.peak_flops_per_s !== null;
    const ask = (question, part) => (known ? question(part, hardware) : null);
    return {
      flops: work.total.flops,
      bytes: work.total.bytes,
      intensity_flops_per_byte: work.total.flops / work.total.bytes,
      limited_by: ask(limitedBy, work.total),
      weights_s: ask(leastTimeS, work.weights),
      weights_limited_by: ask(limitedBy, work.weights),
      attention_s: ask(leastTimeS, work.attention),
      attention_limited_by: ask(limitedBy, work.attention),
      least_s: ask(stepLeastTimeS, work),
      floor_s: ask(leastTimeS, work.total),
    };
  }

  function memory(model, capacityBytes, contextTokens) {
    return {
      capacity_bytes: capacityBytes,
      weight_bytes: weightBytes(model),
      kv_bytes_per_token: kvBytesPerToken(model),
      kv_bytes: kvBytes(model, contextTokens),
      sequences_that_fit:
        capacityBytes === null ? null : sequencesThatFit(model, capacityBytes, contextTokens),
    };
  }

  function batching(model, hardware, choice, fit) {
    if (hardware.peak_flops_per_s === null) return UNKNOWN_BATCHING;
    const decodeS = (batch) =>
      stepLeastTimeS(stepWork(model, chunkOf(1, choice.context, batch)), hardware);
    const against = (tokens) => crossoverAgainst(model, tokens, choice.context, hardware);
    return {
      crossover: predictedCrossover(model, choice.context, hardware),
      crossover_first: against(1),
      crossover_all_awake: against(ALL_AWAKE_TOKENS),
      tokens_per_s_each: 1 / decodeS(choice.batch),
      tokens_per_s: choice.batch / decodeS(choice.batch),
      tokens_per_s_full: fit ? fit / decodeS(fit) : fit,
    };
  }

  const UNKNOWN_BATCHING = {
    crossover: null,
    crossover_first: null,
    crossover_all_awake: null,
    tokens_per_s_each: null,
    tokens_per_s: null,
    tokens_per_s_full: null,
  };

  const found = (rows, key, value) => rows.find((row) => row[key] === value);

  /** Everything that the page shows of a choice: { model, accelerator, numbers, devices, batch,
      context, prompt, link }, names as in the fields, the link in Gb/s. */
  function calculate(data, choice) {
    const numbers = found(data.numbers, "dtype", choice.numbers);
    const model = typedModel(found(data.models, "name", choice.model), numbers);
    const row = found(data.accelerators, "word", choice.accelerator);
    const hardware = hardwareOf(row, numbers, choice.devices);
    const known = hardware.peak_flops_per_s !== null;
    const prefill = phase(stepWork(model, chunkOf(choice.prompt)), hardware);
    const decode = phase(stepWork(model, chunkOf(1, choice.context, choice.batch)), hardware);
    const capacity = row.capacity_bytes === null ? null : choice.devices * row.capacity_bytes;
    const held = memory(model, capacity, choice.context);
    return {
      hardware: { ...hardware, ridge_flops_per_byte: known ? ridgeFlopsPerByte(hardware) : null },
      prefill,
      decode,
      memory: held,
      batching: batching(model, hardware, choice, held.sequences_that_fit),
      moving: handover(model, choice.prompt, prefill.least_s, choice.link * GIGABIT),
    };
  }

  /* Text: units.py, rounding ties to even as Python does. */

  const NOT_PUBLISHED = "not published";
  const TIME_STEPS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const SI_STEPS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

  function rounded(value, decimals) {
    const nearest = value.toFixed(decimals);
    const beyond = value.toFixed(100).split(".")[1].slice(decimals);
    const lower = (value - 0.1 * 10 ** -decimals).toFixed(decimals);
    return /^50*$/.test(beyond) && lower.slice(-1) % 2 === 0 ? lower : nearest;
  }

  function formatSignificant(value, digits = 3) {
    if (value === 0) return "0";
    if (Math.abs(value) < 1e-4) {
      return value.toExponential(digits - 1).replace(/e([+-])(\d)$/, "e$10$2");
    }
    const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
    return rounded(value, Math.max(0, digits - 1 - exponent));
  }

  function formatScaled(value, steps) {
    const size = Math.abs(Number(value.toPrecision(3)));
    const [factor, unit] = steps.find((step) => size >= step[0]) || steps[steps.length - 1];
    return `${formatSignificant(value / factor)} ${unit}`;
  }

  const formatSeconds = (value) => formatScaled(value, TIME_STEPS);
  const formatSi = (value, unit) =>
    formatScaled(value, SI_STEPS.map(([factor, prefix]) => [factor, prefix + unit]));
  const formatCount = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

  const FORMATS = {
    bytes: (value) => formatSi(value, "B"),
    flops: (value) => formatSi(value, "FLOP"),
    intensity: (value) => `${formatSignificant(value)} FLOP/B`,
    flops_per_s: (value) => formatSi(value, "FLOP/s"),
    bytes_per_s: (value) => formatSi(value, "B/s"),
    bits_per_s: (value) => formatSi(8 * value, "b/s"),
    seconds: formatSeconds,
    count: formatCount,
    number: (value) => formatSignificant(value),
    tokens_per_s: (value) => `${formatSignificant(value)} tokens/s`,
    bound: (value) => (value === "compute" ? "arithmetic" : "memory"),
  };

  window.prefillDecodeCalculator = { calculate, formats: FORMATS };

  /* The page. */

  const element = (id) => document.getElementById(`calculator-${id}`);
  const CHOICES = ["model", "accelerator", "numbers"];
  const COUNTS = ["devices", "batch", "context", "prompt", "link"];
  const NAMES = [...CHOICES, ...COUNTS];
  const MOST_NOTES = 5; // of words in a link that name no field
  const LONGEST_SHOWN = 40;

  const shortened = (text) =>
    text.length > LONGEST_SHOWN ? `${text.slice(0, LONGEST_SHOWN)}…` : text;

  const labelOf = (name) => element(name).labels[0].textContent.trim();

  /** What is wrong with a field's text, as a sentence; empty if nothing is. */
  function problemOf(name, text) {
    const field = element(name);
    const said = `; got “${shortened(text)}”.`;
    if (CHOICES.includes(name)) {
      const known = [...field.options].some((option) => option.value === text);
      return known ? "" : `${labelOf(name)} must be one of the list${said}`;
    }
    const { least, most, whole } = field.dataset;
    const shape = whole === undefined ? /^\d+(\.\d+)?$/ : /^\d+$/;
    const value = Number(text.trim());
    const right = shape.test(text.trim()) && value >= Number(least) && value <= Number(most);
    const kind = whole === undefined ? "number" : "whole number";
    const range = `from ${least} to ${formatCount(most)}`;
    return right ? "" : `${labelOf(name)} must be a ${kind} ${range}${said}`;
  }

  /** Types that a model cannot have, though both are on their lists. */
  function mismatch(data, texts) {
    const numbers = found(data.numbers, "dtype", texts.numbers);
    const model = found(data.models, "name", texts.model);
    if (!numbers || !model || !numbers.experts_only || model.experts) return "";
    return `${numbers.dtype} stores routed experts and ${model.name} has none; take int4.`;
  }

  function problemsOf(data, texts) {
    const problems = Object.fromEntries(NAMES.map((name) => [name, problemOf(name, texts[name])]));
    problems.numbers = problems.numbers || mismatch(data, texts);
    return problems;
  }

  function defaultOf(name) {
    const field = element(name);
    if (!CHOICES.includes(name)) return field.defaultValue;
    return [...field.options].find((option) => option.defaultSelected).value;
  }

  /** The texts that a link asks for, and what had to be replaced in it, in words. */
  function readLink(data, search) {
    const asked = new URLSearchParams(search);
    const texts = Object.fromEntries(
      NAMES.map((name) => [name, asked.has(name) ? asked.get(name) : defaultOf(name)]),
    );
    const notes = [...new Set(asked.keys())]
      .filter((name) => !NAMES.includes(name) && name !== "highlight")
      .map((name) => `“${shortened(name)}” names no field and is left out.`);
    if (notes.length > MOST_NOTES) {
      const others = notes.splice(MOST_NOTES).length;
      notes.push(`${formatCount(others)} more name no field and are left out.`);
    }
    const replace = (name, problem) => {
      if (!problem) return;
      texts[name] = defaultOf(name);
      notes.push(`${problem} Taken instead: ${texts[name]}.`);
    };
    for (const name of NAMES) replace(name, problemOf(name, texts[name]));
    replace("numbers", mismatch(data, texts));
    return { texts, notes };
  }

  function showNotes(notes) {
    const place = element("notes");
    place.hidden = notes.length === 0;
    const items = notes.map((note) => {
      const item = document.createElement("li");
      item.textContent = note;
      return item;
    });
    place.querySelector("ul").replaceChildren(...items);
  }

  const textsOf = () => Object.fromEntries(NAMES.map((name) => [name, element(name).value]));

  function choiceOf(texts) {
    const counts = COUNTS.map((name) => [name, Number(texts[name])]);
    return { ...texts, ...Object.fromEntries(counts) };
  }

  function showProblems(problems) {
    for (const name of NAMES) {
      const place = element(`${name}-error`);
      if (place.textContent !== problems[name]) place.textContent = problems[name];
      element(name).toggleAttribute("aria-invalid", false);
      if (problems[name]) element(name).setAttribute("aria-invalid", "true");
    }
  }

  /* Tables: a cell names the value that it shows and the format. */

  function valueAt(results, path) {
    return path.split(".").reduce((part, key) => part[key], results);
  }

  function fillCell(cell, value) {
    if (value === null) {
      cell.textContent = NOT_PUBLISHED;
      return;
    }
    const shown = document.createElement("data");
    shown.value = String(value);
    shown.textContent = FORMATS[cell.dataset.as](value);
    cell.replaceChildren(shown);
  }

  function fillTables(results) {
    for (const cell of document.querySelectorAll("[data-shows]")) {
      if (results === null) cell.textContent = "–";
      else fillCell(cell, valueAt(results, cell.dataset.shows));
    }
  }

  function showRange(results) {
    const { crossover_first: first, crossover_all_awake: awake } = results.batching;
    element("awake").hidden = first === null || awake <= 1.01 * first;
  }

  function summary(results, choice) {
    const { prefill, decode, memory: held } = results;
    if (prefill.least_s === null) {
      return "No source prints this accelerator's dense peak for these numbers, so what needs it " +
        "stays unknown.";
    }
    const says = (each) => `${FORMATS.bound(each.limited_by)}, ${formatSeconds(each.least_s)}`;
    const fit = held.sequences_that_fit;
    const room = fit !== null && fit < choice.batch
      ? ` Of the batch, ${formatCount(fit)} fit in memory.`
      : "";
    return `Prefill is limited by ${says(prefill)} at least. ` +
      `A decode step is limited by ${says(decode)} at least.${room}`;
  }

  function sourceOf(row) {
    const note = row.note ? ` (${row.note})` : "";
    const link = row.link_bytes_per_s;
    const own = link === null ? NOT_PUBLISHED : FORMATS.bits_per_s(link);
    return `${row.name}: ${row.source}${note}. Its own links: ${own}.`;
  }

  /* The picture: the roofline on logarithmic axes, with the two steps on it. */

  const BLUE = "#2b83c6", ORANGE = "#d55e00"; // as in the chapters' figures
  const FRAME = { left: 60, right: 432, top: 26, bottom: 262, width: 450, height: 306 };
  const SVG = "http://www.w3.org/2000/svg";

  function drawn(name, attributes, text = "") {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  }

  const decadeBelow = (value) => Math.floor(Math.log10(value));
  const decadeAbove = (value) => Math.ceil(Math.log10(value));

  /** Places of an intensity and of a rate in the picture, over whole decades. */
  function axes(points, hardware) {
    const ridge = ridgeFlopsPerByte(hardware);
    const intensities = [ridge, ...points.map((point) => point.intensity)];
    const x = [decadeBelow(Math.min(...intensities) / 1.5), decadeAbove(Math.max(...intensities) * 2)];
    const lowest = Math.min(...points.map((point) => point.rate)) / 2;
    const y = [decadeBelow(lowest), decadeAbove(hardware.peak_flops_per_s * 1.2)];
    const place = (value, [low, high], from, to) =>
      from + ((Math.log10(value) - low) / (high - low)) * (to - from);
    return {
      x,
      y,
      xOf: (value) => place(value, x, FRAME.left, FRAME.right),
      yOf: (value) => place(value, y, FRAME.bottom, FRAME.top),
    };
  }

  const decades = ([low, high]) =>
    Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));

  /** With its SI prefix: 100 T. */
  function powerOfTen(value) {
    const steps = [[1e18, "E"], [1e15, "P"], ...SI_STEPS];
    const [factor, prefix] = steps.find((step) => value >= 0.999 * step[0]) || [1, ""];
    return `${Number((value / factor).toPrecision(3))} ${prefix}`.trim();
  }

  function grid({ x, y, xOf, yOf }) {
    const nodes = [];
    const { left, right, top, bottom } = FRAME;
    for (const [value, at] of decades(x).map((each) => [each, xOf(each)])) {
      const middle = { x: at, y: bottom + 17, "text-anchor": "middle" };
      nodes.push(drawn("path", { class: "grid", d: `M${at} ${top}V${bottom}` }));
      nodes.push(drawn("text", middle, powerOfTen(value)));
    }
    for (const [value, at] of decades(y).map((each) => [each, yOf(each)])) {
      const beside = { x: left - 6, y: at + 4, "text-anchor": "end" };
      nodes.push(drawn("path", { class: "grid", d: `M${left} ${at}H${right}` }));
      nodes.push(drawn("text", beside, powerOfTen(value)));
    }
    return nodes;
  }

  function roof({ x, y, xOf, yOf }, hardware) {
    const { peak_flops_per_s: peak, bandwidth_bytes_per_s: bandwidth } = hardware;
    const ridge = ridgeFlopsPerByte(hardware);
    const from = Math.max(10 ** x[0], 10 ** y[0] / bandwidth);
    const slope = `M${xOf(from)} ${yOf(from * bandwidth)}L${xOf(ridge)} ${yOf(peak)}`;
    return [
      drawn("path", { class: "roof", d: `${slope}H${FRAME.right}` }),
      drawn("path", { class: "ridge", d: `M${xOf(ridge)} ${yOf(peak)}V${FRAME.bottom}` }),
      drawn("text", { x: xOf(ridge) - 5, y: FRAME.bottom - 6, "text-anchor": "end" }, "ridge"),
    ];
  }

  function mark({ xOf, yOf }, point, lowered) {
    const [x, y] = [xOf(point.intensity), yOf(point.rate)];
    const late = x > FRAME.right - 60; // no room to the right of it
    const label = { x: x + (late ? -8 : 8), y: y + (lowered ? 34 : 18), class: "name" };
    label["text-anchor"] = late ? "end" : "start";
    const shape = point.name === "decode"
      ? drawn("circle", { cx: x, cy: y, r: 6, fill: ORANGE })
      : drawn("rect", { x: x - 5.5, y: y - 5.5, width: 11, height: 11, fill: BLUE });
    return [shape, drawn("text", label, point.name)];
  }

  function picture(results) {
    const points = ["decode", "prefill"].map((name) => ({
      name,
      intensity: results[name].intensity_flops_per_byte,
      rate: results[name].flops / results[name].least_s,
    }));
    const scale = axes(points, results.hardware);
    const [first, second] = points.map((p) => [scale.xOf(p.intensity), scale.yOf(p.rate)]);
    const close = Math.abs(first[0] - second[0]) < 70 && Math.abs(first[1] - second[1]) < 18;
    const words = [
      drawn("text", { x: 2, y: 13 }, "FLOP/s at most"),
      drawn("text", { x: FRAME.right, y: FRAME.height - 8, "text-anchor": "end" }, "FLOP for each byte"),
    ];
    const svg = drawn("svg", { viewBox: `0 0 ${FRAME.width} ${FRAME.height}`, role: "img" });
    svg.append(...grid(scale), ...words, ...roof(scale, results.hardware));
    svg.append(...mark(scale, points[0], false), ...mark(scale, points[1], close));
    svg.setAttribute("aria-label", alternative(points, results));
    return svg;
  }

  function alternative(points, results) {
    const { peak_flops_per_s: peak, ridge_flops_per_byte: ridge } = results.hardware;
    const side = { compute: "right of the ridge", bandwidth: "on the memory slope" };
    const steps = points.map(
      ({ name, intensity, rate }) =>
        `${name} lies ${side[results[name].limited_by]}, at ${FORMATS.intensity(intensity)} and ` +
        `at most ${FORMATS.flops_per_s(rate)}`,
    );
    return `Roofline with a ceiling of ${FORMATS.flops_per_s(peak)} and a ridge at ` +
      `${FORMATS.intensity(ridge)}: ${steps.join("; ")}.`;
  }

  function showPicture(results) {
    const known = results !== null && results.prefill.least_s !== null;
    element("picture").replaceChildren(...(known ? [picture(results)] : []));
  }

  /* Link and start. */

  function linkTo(texts) {
    const words = new URLSearchParams(NAMES.map((name) => [name, texts[name].trim()]));
    return `${location.pathname}?${words}`;
  }

  /** The address follows the choice where the browser lets it; from a file it may not. */
  function keepLink(texts) {
    const link = element("link-to-this");
    link.href = linkTo(texts);
    try {
      history.replaceState(null, "", link.href + location.hash);
    } catch {
      // The link in the page holds the choice all the same.
    }
  }

  async function copyLink() {
    let said = "Link copied.";
    try {
      await navigator.clipboard.writeText(element("link-to-this").href);
    } catch {
      said = "The browser refused to copy; take the address from the link beside the button.";
    }
    element("copied").textContent = said;
  }

  function blank() {
    fillTables(null);
    showPicture(null);
    element("awake").hidden = true;
    element("source").textContent = "";
    element("link-to-this").removeAttribute("href");
    element("summary").textContent = "No results: see the message beside the field.";
  }

  function update(data) {
    const texts = textsOf();
    const problems = problemsOf(data, texts);
    const wrong = NAMES.some((name) => problems[name]);
    showProblems(problems);
    element("copied").textContent = "";
    element("copy").disabled = wrong;
    if (wrong) {
      blank();
      return;
    }
    const choice = choiceOf(texts);
    const results = calculate(data, choice);
    fillTables(results);
    showRange(results);
    showPicture(results);
    element("summary").textContent = summary(results, choice);
    element("source").textContent = sourceOf(found(data.accelerators, "word", texts.accelerator));
    keepLink(texts);
  }

  function start() {
    const data = JSON.parse(element("data").textContent);
    const form = element("form");
    const { texts, notes } = readLink(data, location.search);
    for (const name of NAMES) element(name).value = texts[name];
    showNotes(notes);
    form.addEventListener("input", () => update(data));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { showNotes([]); update(data); }));
    element("copy").addEventListener("click", copyLink);
    form.hidden = false;
    update(data);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
