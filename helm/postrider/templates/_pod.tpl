{{/* The pod template of Deployment and StatefulSet. */}}
{{- define "postrider.podTemplate" -}}
{{- $values := .Values -}}
metadata:
  labels:
    {{- mergeOverwrite (deepCopy $values.podLabels) (include "postrider.labels" . | fromYaml) (include "postrider.relayLabels" . | fromYaml) | toYaml | nindent 4 }}
  annotations:
    checksum/config: {{ include "postrider.checksum" . }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "postrider.podCommon" . | nindent 2 }}
  serviceAccountName: {{ include "postrider.serviceAccountName" . }}
  terminationGracePeriodSeconds: {{ include "postrider.terminationGracePeriodSeconds" . }}
  {{- with $values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "postrider.relayLabels" $ | fromYaml)) }}
    - {{ ternary . (merge $own .) (hasKey . "labelSelector") | toYaml | indent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- with $values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "postrider.container.run" (dict "root" . "static" $values.staticPartitions) | indent 6 | trim }}
      {{- include "postrider.ownSecurityContext" . | nindent 6 }}
    {{- with $values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "postrider.container.volumes" (dict "root" . "static" $values.staticPartitions "mode" 288) | nindent 4 }}
{{- end }}

{{/* Common parts of the pods of the relay, the schema Job and the test. */}}
{{- define "postrider.podCommon" -}}
automountServiceAccountToken: {{ .Values.serviceAccount.automountServiceAccountToken }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
