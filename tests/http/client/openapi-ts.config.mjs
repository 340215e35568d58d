export default {
  input: process.env.DESCRIPTION,
  output: { path: "api", importFileExtension: ".js" },
};
