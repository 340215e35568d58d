const majority = { w: "majority" };

// Why an existing collection cannot be used; undefined if it can.
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
      if (error.code !== 48) throw error; // 48: another client has just created it.
      [info] = database.getCollectionInfos({ name });
    }
  }
  const wrong = whatIsWrongWith(info);
  if (wrong !== undefined) {
    throw new Error(`${name} cannot be used: it is ${wrong}; Postrider requires a plain collection: drop or rename it`);
  }
  print(`collection ${name} exists`);
}

// The definition of an index as text: equal texts mean equal indexes.
function definition({ v, ns, name, background, ...options }) {
  const set = Object.entries(options).filter(([, value]) => value !== false);
  return EJSON.stringify(Object.fromEntries(set.sort(([a], [b]) => (a < b ? -1 : 1))));
}

// The same without the time after which documents expire.
function definitionButExpiry({ expireAfterSeconds, ...options }) {
  return definition(options);
}

// Whether an index is unique in exactly these fields.
function isUniqueIn(keys, { key, unique }) {
  const fields = Object.keys(keys);
  return unique && fields.length === Object.keys(key).length && fields.every((field) => field in key);
}

// Each index is {name, key, …} in MongoDB's format. {excludes: {key, setting}} names an index that must not exist in
// addition; {adjusted: true} marks one whose expireAfterSeconds is adjusted in place.
function createIndexes(database, name, indexes) {
  const found = database.getCollection(name).getIndexes();
  const missing = [];
  const changed = [];
  const dropping = (other) => "if no program needs the existing index, drop it and run this script again: "
    + `db.getCollection(${JSON.stringify(name)}).dropIndex(${JSON.stringify(other.name)})`;
  for (const { excludes, adjusted, ...index } of indexes) {
    const cannot = `index ${index.name} of collection ${name} cannot be created: `;
    const rival = excludes && found.find((other) => isUniqueIn(excludes.key, other));
    const same = found.find((other) => other.name === index.name);
    const twin = found.find((other) => definitionButExpiry(other) === definitionButExpiry(index));
    if (rival !== undefined) {
      throw new Error(`${cannot}the unique index ${rival.name} excludes it; set ${excludes.setting}, with which that `
        + `index was created; or, ${dropping(rival)}`);
    } else if (same !== undefined && definition(same) === definition(index)) {
      print(`index ${index.name} of ${name} exists`);
    } else if (adjusted && same !== undefined && same === twin && "expireAfterSeconds" in same) {
      changed.push(index);
    } else if (same !== undefined || twin !== undefined) {
      const other = same ?? twin;
      throw new Error(`${cannot}found ${EJSON.stringify(other)}, expected ${EJSON.stringify(index)}; `
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
      throw new Error(`cannot create indexes ${names} of collection ${name}: ${error.message}`);
    }
    print(`created indexes ${names} of ${name}`);
  }
  for (const { name: index, expireAfterSeconds } of changed) {
    database.runCommand({ collMod: name, index: { name: index, expireAfterSeconds }, writeConcern: majority });
    print(`adjusted index ${index}: delivered records are removed after ${expireAfterSeconds} s`);
  }
}
