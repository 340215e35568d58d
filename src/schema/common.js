const majority = { w: "majority" };

// Why what exists can't be used; undefined where nothing is wrong.
function whatIsWrongWith(info) {
  if (info.type !== "collection") return `a ${info.type}`;
  if (info.options.capped) return "a capped collection";
  if (info.options.collation) return "a collection with a default collation";
}

function createCollection(database, name, options) {
  let [info] = database.getCollectionInfos({ name });
  if (info === undefined) {
    try {
      database.runCommand({ create: name, ...options, writeConcern: majority });
      print(`created collection ${name}`);
      return;
    } catch (error) {
      if (error.code !== 48) throw error; // 48: somebody else created it in this moment.
      [info] = database.getCollectionInfos({ name });
    }
  }
  const wrong = whatIsWrongWith(info);
  if (wrong !== undefined) {
    throw new Error(`${name} can't be used: it is ${wrong}, and a plain collection is needed`);
  }
  print(`collection ${name} is there`);
}

// What defines an index, as text: two of the same text are the same.
function definition({ v, ns, name, background, ...options }) {
  const set = Object.entries(options).filter(([, value]) => value !== false);
  return EJSON.stringify(Object.fromEntries(set.sort(([a], [b]) => (a < b ? -1 : 1))));
}

// The same without the time after which documents go.
function definitionButExpiry({ expireAfterSeconds, ...options }) {
  return definition(options);
}

// Whether an index is unique in just these fields.
function isUniqueIn(keys, { key, unique }) {
  const fields = Object.keys(keys);
  return unique && fields.length === Object.keys(key).length && fields.every((field) => field in key);
}

// Each is {name, key, …} as MongoDB takes it. One that others must not be beside says so: {excludes: {key, setting}};
// and one whose expireAfterSeconds is adjusted in place: {adjusted: true}.
function createIndexes(database, name, indexes) {
  const found = database.getCollection(name).getIndexes();
  const missing = [];
  const changed = [];
  const dropping = (other) => "if nobody needs the one that is there, drop it and run this again: "
    + `db.getCollection(${JSON.stringify(name)}).dropIndex(${JSON.stringify(other.name)})`;
  for (const { excludes, adjusted, ...index } of indexes) {
    const cannot = `index ${index.name} of collection ${name} can't be created: `;
    const rival = excludes && found.find((other) => isUniqueIn(excludes.key, other));
    const same = found.find((other) => other.name === index.name);
    const twin = found.find((other) => definitionButExpiry(other) === definitionButExpiry(index));
    if (rival !== undefined) {
      throw new Error(`${cannot}there is the unique index ${rival.name}, which excludes it; set ${excludes.setting}, `
        + `with which that one was made; or, ${dropping(rival)}`);
    } else if (same !== undefined && definition(same) === definition(index)) {
      print(`index ${index.name} of ${name} is there`);
    } else if (adjusted && same !== undefined && same === twin && "expireAfterSeconds" in same) {
      changed.push(index);
    } else if (same !== undefined || twin !== undefined) {
      const other = same ?? twin;
      throw new Error(`${cannot}there is ${EJSON.stringify(other)}, and it should be ${EJSON.stringify(index)}; `
        + dropping(other));
    } else {
      missing.push(index);
    }
  }
  if (missing.length > 0) {
    const names = missing.map((index) => index.name).join(", ");
    try {
      database.runCommand({ createIndexes: name, indexes: missing, writeConcern: majority });
    } catch (error) {
      throw new Error(`of ${names} of collection ${name} one can't be created: ${error.message}`);
    }
    print(`created indexes ${names} of ${name}`);
  }
  for (const { name: index, expireAfterSeconds } of changed) {
    database.runCommand({ collMod: name, index: { name: index, expireAfterSeconds }, writeConcern: majority });
    print(`adjusted index ${index}: delivered records go after ${expireAfterSeconds} s`);
  }
}
